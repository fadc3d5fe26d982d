/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window_core.pml - the daemon of window.pml: windows, steps and reductions of two ranks, event by event.
 *
 * An event sets `dirty`, and nothing else happens before settle() has run: that is zd_settle(). Inlines call each other with
 * parameters that have names of their own, since spin looks names up where they are used.
 */

/* The rank's window of that number; 4: none. */
inline find(fr, fn, found)
{
	found = 4;
	if
	:: number[CUR(fr)] == fn -> found = CUR(fr)
	:: else ->
		if
		:: closes[fr] && begun[CLO(fr)] && number[CLO(fr)] == fn -> found = CLO(fr)
		:: else
		fi
	fi
}

/* ---- Targets (core/target.c, storage.c) ------------------------------------------------------------------------ */

inline use(ur, ub) { block_uses[2 * ur + ub]++ }

inline unuse(vr, vb)
{
	block_uses[2 * vr + vb]--;
	if
	:: block_uses[2 * vr + vb] == 0 && block_dropped[2 * vr + vb] ->
		block_dropped[2 * vr + vb] = false;
		block_of[2 * vr + vb] = 0;
		block_holds[2 * vr + vb] = 0
	:: else
	fi
}

inline drop(dw)
{
	if
	:: target[dw] != NOWHERE ->
		block_dropped[2 * RANK(dw) + target[dw]] = true;
		use(RANK(dw), target[dw]);
		unuse(RANK(dw), target[dw]);
		target[dw] = NOWHERE
	:: else
	fi
}

inline bind(br)
{
	b = 0;
	do
	:: b < TARGETS && block_of[2 * br + b] != 0 -> b++
	:: else -> break
	od;
	if
	:: b < TARGETS ->
		block_of[2 * br + b] = number[CUR(br)] + 1;
		target[CUR(br)] = b
	:: else -> /* it comes free without a call: behind a step's end, or a stream */
		assert(closes[br] && enders[br] > 0 || block_dropped[2 * br] || block_dropped[2 * br + 1])
	fi
}

/* ---- Answers --------------------------------------------------------------------------------------------------- */

/* The step of window n is decided for the rank: by a result, not by a promise. */
inline tell(tr, tn, said)
{
	assert(tn >= next_told[tr]);
	next_told[tr] = tn + 1;
	agree_on(tn, said)
}

inline agree_on(an, what)
{
	assert(outcome[an] == NONE || outcome[an] == what);
	assert((what == ABANDONED) == given_up[an]);
	outcome[an] = what
}

inline keep_promise(pw)
{
	if
	:: promise[pw] ->
		promise[pw] = false;
		passed[OF(number[pw], RANK(pw))] = true
	:: else
	fi
}

/* ---- Windows (core/window.c) ----------------------------------------------------------------------------------- */

inline inherit(ir)
{
	o = 1 - ir;
	if
	:: number[CUR(o)] > number[CUR(ir)] -> abandoned[ir] = past[o]
	:: number[CUR(o)] == number[CUR(ir)] -> abandoned[ir] = abandoned[o]
	:: else
	fi
#ifdef M_LEFT_IS_FORGOTTEN
	;
	if
	:: number[CUR(o)] > number[CUR(ir)] -> abandoned[ir] = false
	:: else
	fi
#endif
}

inline close(cw)
{
	begun[cw] = false;
	if
	:: cw < 2 ->
		abandoned[cw] = false;
		told[cw] = false;
		number[cw]++;
		inherit(cw)
	:: else
	fi
}

inline leave(lr, how)
{
	step[CUR(lr)] = how;
	drop(CUR(lr));
	past[lr] = abandoned[lr];
	close(CUR(lr))
}

inline try_pass(pr)
{
	if
#ifdef M_TWO_CLOSE
	:: promise[CUR(pr)] && enders[pr] > 0 ->
#else
	:: !closes[pr] && promise[CUR(pr)] && enders[pr] > 0 ->
#endif
		assert(!closes[pr]);
		closes[pr] = true;
		number[CLO(pr)] = number[CUR(pr)];
		begun[CLO(pr)] = true;
		backward[CLO(pr)] = backward[CUR(pr)];
		step[CLO(pr)] = step[CUR(pr)];
		promise[CLO(pr)] = true;
		target[CLO(pr)] = target[CUR(pr)];
		number[CUR(pr)]++;
		begun[CUR(pr)] = false;
		backward[CUR(pr)] = IDLE;
		step[CUR(pr)] = NONE;
		promise[CUR(pr)] = false;
		target[CUR(pr)] = NOWHERE;
		inherit(pr);
		changed = true
	:: else
	fi
}

inline window_end(ew)
{
	if
	:: ew >= 2 ->
		closes[RANK(ew)] = false;
		number[ew] = 0;
		try_pass(RANK(ew))
	:: else
	fi
}

/* ---- Reductions (core/reduce.c, entry.c) ----------------------------------------------------------------------- */

/* Nothing reads the rank's gradient of window n any more. */
inline drain(en, er)
{
	if
	:: entry[PLACE(en, er)] == en + 1 && !(reserved[er] && number[CUR(er)] == en) && ready[OF(en, er)] &&
	   (reduction[en] == OVER || !made[OF(en, er)] ||
	    reduction[en] == FAILED && given[OF(en, 0)] == summed[OF(en, 0)] && given[OF(en, 1)] == summed[OF(en, 1)]) ->
		entry[PLACE(en, er)] = 0
	:: else
	fi
}

inline give_sums(gn)
{
	if
	:: !lost && reduction[gn] == SUMMING && ready[OF(gn, 0)] && ready[OF(gn, 1)] && !given[OF(gn, 0)] ->
		q = 0;
		do
		:: q < 2 ->
			find(q, gn, v);
			assert(v < 4 && target[v] != NOWHERE);
			given[OF(gn, q)] = true;
			sums_to[OF(gn, q)] = target[v];
			use(q, target[v]);
			q++
		:: else -> break
		od
	:: else
	fi
}

/* Has the rank its slice and its entry back: else its backward waits. */
#define IS_OPEN(n, r) (entry[PLACE(n, r)] == n + 1 || made[OF(n, r)] && reduction[n] == SUMMING && !summed[OF(n, r)])

/* ---- Steps (core/step.c, backward.c) --------------------------------------------------------------------------- */

/* 4: it is not called there. */
inline find_called(cr, cn, called)
{
	find(cr, cn, called);
	if
	:: called < 4 && step[called] != CALLED && step[called] != WAITING -> called = 4
	:: else
	fi
}

#ifdef M_STEPS_OVERTAKE
#define FOLLOWS(win) false
#else
#define FOLLOWS(win) (win < 2 && closes[RANK(win)] && (step[CLO(RANK(win))] == CALLED || step[CLO(RANK(win))] == WAITING))
#endif

inline answer_step(sw, answer, ahead)
{
	if
	:: step_asked[RANK(sw)] && sw < 2 && step_reply[RANK(sw)] == NONE ->
		step_asked[RANK(sw)] = false;
		step_reply[RANK(sw)] = answer;
		step_ahead[RANK(sw)] = ahead;
		step_target[RANK(sw)] = target[sw]
	:: else
	fi
}

inline take_all(all)
{
	q = 0;
	do
	:: q < 2 ->
		find(q, all, v);
		assert(v < 4);
		tell(q, all, OK);
		step[v] = TAKEN;
		answer_step(v, OK, false);
		keep_promise(v);
		close(v);
		q++
	:: else -> break
	od;
	changed = true
}

inline step_attempt(win)
{
	k = number[win];
	if
	:: (step[win] == CALLED || step[win] == WAITING) && !promise[win] && !(win < 2 && abandoned[RANK(win)]) ->
		find_called(1 - RANK(win), k, v);
		if
		:: v < 4 -> /* both have submitted: the sums depend on no call */
			agree_on(k, OK);
			promise[win] = true;
			answer_step(win, OK, true);
			changed = true
		:: else
		fi
	:: else
	fi;
	if
	:: step[win] == CALLED && backward[win] == IDLE && !FOLLOWS(win) ->
		if
		:: win < 2 && abandoned[win] ->
			tell(RANK(win), k, ABANDONED);
			answer_step(win, ABANDONED, false);
			leave(RANK(win), TAKEN)
		:: else -> step[win] = WAITING
		fi;
		changed = true
	:: else
	fi;
	if
	:: step[win] == WAITING ->
		find(1 - RANK(win), k, v);
		if
		:: v < 4 && step[v] == WAITING -> take_all(k)
		:: win < 2 && abandoned[win] -> step[win] = CALLED; changed = true /* meanwhile */
		:: else
		fi
	:: else
	fi
}

inline backward_attempt(win)
{
	if
	:: backward[win] == STARTING && !abandoned[RANK(win)] && target[win] == NOWHERE -> bind(RANK(win))
	:: else
	fi;
	if
	:: backward[win] == STARTING && (abandoned[RANK(win)] || target[win] != NOWHERE) ->
		backward[win] = RUNNING;
		begin_reply[RANK(win)] = OK;
		changed = true
	:: backward[win] == ENDING && !IS_OPEN(number[win], RANK(win)) ->
		backward[win] = IDLE;
		if
		:: step[win] == NONE -> step[win] = READY
		:: else
		fi;
		changed = true
	:: else
	fi
}

inline abandon_attempt(r)
{
	if
	:: abandon_asked[r] && !IS_OPEN(number[CUR(r)], r) ->
		abandon_asked[r] = false;
		abandon_reply[r] = OK;
		if
		:: backward[CUR(r)] == RUNNING -> backward[CUR(r)] = IDLE
		:: else
		fi;
		if
		:: backward[CUR(r)] == IDLE && step[CUR(r)] == NONE -> step[CUR(r)] = READY
		:: else
		fi;
		changed = true
	:: else
	fi
}

/* The step of the window that closes ends first. */
inline end_attempt(r)
{
	w = (closes[r] -> CLO(r) : CUR(r));
	if
	:: enders[r] > 0 && !promise[w] && step[w] != CALLED && step[w] != WAITING ->
		enders[r]--;
		if
		:: step[w] == TAKEN || step[w] == LEFT ->
			step[w] = NONE;
			drop(w);
			window_end(w)
		:: else
		fi;
		changed = true
	:: else
	fi
}

/* After an event, until nothing changes any more. */
inline settle()
{
	changed = true;
	do
	:: changed ->
		changed = false;
		x = 0;
		do
		:: x < 2 ->
			y = (closes[x] && !lost -> CLO(x) : CUR(x));
			do
			:: !lost ->
				backward_attempt(y);
				step_attempt(y);
				if
				:: y == CUR(x) -> break
				:: else -> y = CUR(x)
				fi
			:: else -> break
			od;
			abandon_attempt(x);
			end_attempt(x);
			x++
		:: else -> break
		od
	:: else -> break
	od;
	check(0);
	check(1)
}

inline check(kr)
{
	assert(enders[kr] <= 2);
	assert(!closes[kr] || promise[CLO(kr)] || step[CLO(kr)] == TAKEN || step[CLO(kr)] == LEFT);
	assert(!begun[CLO(kr)] || number[CLO(kr)] < number[CUR(kr)]);
	assert(!abandoned[kr] || target[CUR(kr)] == NOWHERE || step[CUR(kr)] == TAKEN)
}

/* ---- Events: requests ------------------------------------------------------------------------------------------ */

inline on_begin(r)
{
	if
	:: lost -> begin_reply[r] = LOST
	:: else ->
		if
		:: told[r] && begun[CUR(r)] -> leave(r, NONE)
		:: else
		fi;
		assert(backward[CUR(r)] == IDLE && (step[CUR(r)] == NONE || step[CUR(r)] == READY));
		step[CUR(r)] = NONE;
		begun[CUR(r)] = true;
		backward[CUR(r)] = STARTING
	fi;
	dirty = true
}

inline on_submit(r)
{
	k = number[CUR(r)];
	o = number[CUR(1 - r)];
	reserved[r] = false;
	if
#ifdef M_ANY_WINDOW
	:: abandoned[r] && o < ROUNDS && o != k && made[OF(o, 1 - r)] ->
		made[OF(o, r)] = true;
		ready[OF(o, r)] = true;
		reduction[o] = SUMMING;
		give_sums(o)
#endif
	:: lost || abandoned[r]
	:: else ->
		made[OF(k, r)] = true;
		if
		:: made[OF(k, 1 - r)] -> reduction[k] = SUMMING; give_sums(k)
		:: else
		fi
	fi;
	drain(k, r);
	dirty = true
}

inline on_end(r)
{
	if
	:: !lost -> backward[CUR(r)] = ENDING
	:: else
	fi;
	dirty = true
}

inline abandon_on(ar, at, by)
{
	if
	:: number[CUR(ar)] == at ->
		abandoned[ar] = true;
		told[ar] = (ar == by);
		if
		:: step[CUR(ar)] != TAKEN -> drop(CUR(ar))
		:: else
		fi
	:: else
	fi
}

/* Refused when a rank was promised the step. */
inline on_abandon(r)
{
	k = number[CUR(r)];
	find(1 - r, k, v);
	if
	:: lost -> abandon_reply[r] = LOST
	:: else ->
		assert(!promise[CUR(r)] && (v == 4 || !promise[v]));
		given_up[k] = true;
		if
		:: !abandoned[r] ->
#ifdef M_ABANDONED_ALONE
			abandon_on(r, k, r);
#else
			abandon_on(0, k, r);
			abandon_on(1, k, r);
#endif
#ifdef M_ABANDONS_THE_FORMER
			if
			:: k > 0 && reduction[k - 1] == SUMMING -> reduction[k - 1] = FAILED
			:: else
			fi;
#endif
			if
			:: reduction[k] != OVER -> reduction[k] = FAILED
			:: else
			fi
		:: else
		fi;
		told[r] = true;
		if
		:: reserved[r] -> /* the request names the streams that write it */
			reserved[r] = false;
			ready[OF(k, r)] = ready[OF(k, r)] || !written
		:: else
		fi;
		drain(k, 0);
		drain(k, 1);
		abandon_asked[r] = true
	fi;
	dirty = true
}

inline on_step_begin(r)
{
	if
	:: lost -> step_reply[r] = LOST
	:: else ->
		assert(step[CUR(r)] == READY || step[CUR(r)] == NONE && backward[CUR(r)] == ENDING);
		step_asked[r] = true;
		step[CUR(r)] = CALLED
	fi;
	dirty = true
}

/* The target stays until the stream has passed what was named. */
inline on_step_end(r, n, which)
{
	if
	:: which != NOWHERE && !signalled[OF(n, r)] ->
		reading[OF(n, r)] = which;
#ifdef M_END_IGNORES_STREAMS
		reading[OF(n, r)] = NOWHERE
#else
		use(r, which)
#endif
	:: else
	fi;
	enders[r]++;
	if
	:: !lost -> try_pass(r)
	:: else
	fi;
	dirty = true
}

/* ---- Events: others -------------------------------------------------------------------------------------------- */

/* The stream has written the gradient. */
inline on_written(r, n)
{
	ready[OF(n, r)] = true;
	give_sums(n);
	drain(n, r);
	dirty = true
}

inline on_read(r, n)
{
	signalled[OF(n, r)] = true;
	if
	:: reading[OF(n, r)] != NOWHERE ->
		unuse(r, reading[OF(n, r)]);
		reading[OF(n, r)] = NOWHERE
	:: else
	fi;
	dirty = true
}

inline on_summed(n, r)
{
	summed[OF(n, r)] = true;
	unuse(r, sums_to[OF(n, r)]);
	if
	:: summed[OF(n, 0)] && summed[OF(n, 1)] && reduction[n] == SUMMING -> reduction[n] = OVER
	:: else
	fi;
	drain(n, 0);
	drain(n, 1);
	dirty = true
}

/* What the rank's streams may read is kept until it says otherwise, and promises are. */
inline abandon_step(bw)
{
	backward[bw] = IDLE;
	if
	:: promise[bw] || step[bw] == TAKEN ->
#ifdef M_LOST_PROMISES
		promise[bw] = false;
#endif
		step[bw] = LEFT;
		keep_promise(bw)
	:: else ->
		drop(bw);
		step[bw] = NONE
	fi;
	begun[bw] = false
}

inline refuse(rr)
{
	if
	:: backward[CUR(rr)] == STARTING -> begin_reply[rr] = LOST
	:: else
	fi;
	if
	:: step_asked[rr] -> step_asked[rr] = false; step_reply[rr] = LOST
	:: else
	fi;
	if
	:: abandon_asked[rr] -> abandon_asked[rr] = false; abandon_reply[rr] = LOST
	:: else
	fi
}

inline on_death()
{
	lost = true;
	refuse(0);
	if
	:: closes[0] -> abandon_step(CLO(0))
	:: else
	fi;
	abandon_step(CUR(0));
	abandoned[0] = false;
	told[0] = false;
	dirty = true
}

/* Its streams have drained: as by session_reset. */
inline on_give_up(r)
{
	if
	:: closes[r] && step[CLO(r)] == LEFT -> drop(CLO(r)); step[CLO(r)] = NONE; closes[r] = false
	:: else
	fi;
	if
	:: step[CUR(r)] == LEFT -> drop(CUR(r)); step[CUR(r)] = NONE
	:: else
	fi;
	dirty = true
}
