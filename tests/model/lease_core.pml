/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease_core.pml - the daemon's part of lease.pml: what daemon/core does for leases and blocks, under its functions' names.
 *
 * It takes one event at a time, as the loop thread does; no event interrupts another.
 */

/* ---- The daemon's memory --------------------------------------------------------------------------------------- */

bool attached[2] = true; /* the rank has a session */
bool rejoin[2];          /* a replacement asks to join */
byte session[2];         /* its number: a replacement has another */
mtype state[BLOCKS] = FREE;
byte owner[BLOCKS];      /* rank */
byte uses[2 * BLOCKS];   /* block * 2 + tag: releases left of that lease */
byte transfers[BLOCKS], watches[BLOCKS];
byte buffer_fence[2 * BLOCKS]; /* block * 2 + queue */
bool stale[BLOCKS];
byte part[2] = NOBODY; /* the rank's copy: a block */
byte timeline[4];      /* rank * 2 + queue: last value given out */
byte charged;
bool dirty;
byte order[HOLDERS], nwaiting; /* waiting gathers, in order of arrival */
bool wants_memory[HOLDERS];
byte memory_waiters;
bool pass_blocked; /* one before wants room */
#ifdef PERSISTENT
bool persistent = true; /* rank 0's unit */
byte publishes = 1;
#define KEPT(blk) (owner[blk] == 0 && persistent)
#else
#define KEPT(blk) false
#endif
#define LEASED(blk) (uses[2 * (blk)] + uses[2 * (blk) + 1] > 0)
#define BUSY(blk)   (transfers[blk] > 0 || watches[blk] > 0)
#define READY       (attached[0] && attached[1])

/* Scratch of steps that nothing interrupts; of no meaning between them, so not part of the state. */
hidden byte at, i, n, tr, gp, gr, rr, wi, wants;

/* ---- core/buffer.c --------------------------------------------------------------------------------------------- */

inline buffer_free(blk)
{
	assert(state[blk] == QUARANTINED && !LEASED(blk));
	state[blk] = FREE;
	owner[blk] = 0;
	stale[blk] = false;
	buffer_fence[2 * blk] = 0;
	buffer_fence[2 * blk + 1] = 0;
	dirty = true;
}

/* No lease is left: uncharged now, free when the last operation is over. */
inline buffer_drop(blk)
{
	assert(part[owner[blk]] == blk && (state[blk] == INFLIGHT || state[blk] == AVAILABLE));
	state[blk] = QUARANTINED;
	part[owner[blk]] = NOBODY;
#ifndef M_CHARGE_WHILE_QUARANTINED
	charged--;
#endif
	dirty = true;
	if
#if defined(M_FREE_UNDER_COPY)
	:: watches[blk] == 0 -> buffer_free(blk)
#elif defined(M_FREE_UNDER_FENCE)
	:: transfers[blk] == 0 -> buffer_free(blk)
#else
	:: !BUSY(blk) -> buffer_free(blk)
#endif
	:: else
	fi
}

inline buffer_op_over(blk)
{
	if
	:: !BUSY(blk) ->
#ifndef M_LOST_WAKEUP
		dirty = true;
#endif
		if
		:: state[blk] == QUARANTINED ->
#ifdef M_CHARGE_WHILE_QUARANTINED
			charged--;
#endif
			buffer_free(blk)
		:: else
		fi;
#ifdef M_LOST_WAKEUP
		dirty = false
#endif
	:: else
	fi
}

/* One copy a source, one fence a queue. A block is written from here on, newly taken or refreshed in place: nobody uses it any
 * more and nothing writes it. That is the rule that all of this is for. */
inline buffer_transfer(blk)
{
	assert(pending_uses[blk] == 0 && pending_uses[BLOCKS + blk] == 0);
	assert(pending_copies[blk] == 0);
	assert(transfers[blk] == 0);
	state[blk] = INFLIGHT;
	stale[blk] = false;
	transfers[blk] = COPY_QUEUES;
	pending_copies[blk] = COPY_QUEUES;
	tr = owner[blk];
	timeline[2 * tr] = NEXT(timeline[2 * tr]);
	timeline[2 * tr + 1] = NEXT(timeline[2 * tr + 1]);
	buffer_fence[2 * blk] = timeline[2 * tr];
	buffer_fence[2 * blk + 1] = timeline[2 * tr + 1];
	bytes[2 * blk] = 0;
	bytes[2 * blk + 1] = 0;
	copy_queue[0]!blk, tr, session[tr], timeline[2 * tr];
	copy_queue[1]!blk, tr, session[tr], timeline[2 * tr + 1]
}

/* ---- core/gather.c: gather ------------------------------------------------------------------------------------- */

inline gather_done(h, blk)
{
	uses[2 * blk + TAG(h)] = uses[2 * blk + TAG(h)] + gather_uses[h];
	gather_reply[h] = 1;
	reply_block[h] = blk;
	reply_fence[2 * h] = (state[blk] == INFLIGHT -> buffer_fence[2 * blk] : NOBODY);
#ifdef M_ONE_QUEUES_FENCE
	reply_fence[2 * h + 1] = NOBODY
#else
	reply_fence[2 * h + 1] = (state[blk] == INFLIGHT -> buffer_fence[2 * blk + 1] : NOBODY)
#endif
}

inline gather_place(h)
{
	gp = 0;
	do
	:: gp < BLOCKS && state[gp] != FREE -> gp++
	:: else -> break
	od;
	if
	:: pass_blocked || (!gather_waits[h] && memory_waiters > 0) || charged + 1 > BUDGET || gp == BLOCKS ->
		pass_blocked = true;
		wants = 1
	:: else ->
		owner[gp] = RANK(h);
		part[RANK(h)] = gp;
		charged++;
		buffer_transfer(gp);
		gather_done(h, gp)
	fi
}

inline gather_refresh(h)
{
	if
#ifdef M_REFRESH_UNDER_FENCE
	:: LEASED(part[gr]) || transfers[part[gr]] > 0
#else
	:: LEASED(part[gr]) || BUSY(part[gr])
#endif
	:: else ->
		buffer_transfer(part[gr]);
		gather_done(h, part[gr])
	fi
}

/* Answers, or leaves gather_reply 0: it waits. */
inline gather_attempt(h)
{
	gr = RANK(h);
	wants = 0;
	if
	:: !READY -> gather_reply[h] = 2 /* PEER_LOST */
	:: READY && part[gr] == NOBODY -> gather_place(h)
	:: READY && part[gr] != NOBODY && !stale[part[gr]] -> gather_done(h, part[gr])
	:: READY && part[gr] != NOBODY && stale[part[gr]] -> gather_refresh(h)
	fi;
	if
	:: gather_reply[h] == 0 -> /* note_memory_wait */
		memory_waiters = memory_waiters + wants - wants_memory[h];
		wants_memory[h] = wants
	:: else
	fi
}

/* ---- core/gather.c: release ------------------------------------------------------------------------------------ */

/* Of those fences that have not passed. */
inline fences_watch(h, blk)
{
	if
	:: PASSED(client_page[2 * RANK(h)], release_fence[2 * h]) &&
	   PASSED(client_page[1], release_fence[2 * h + 1])
	:: else ->
		wi = 0;
		do
		:: watch_block[wi] != NOBODY -> wi++
		:: else -> break
		od;
		watch_block[wi] = blk;
		watch_session[wi] = session[RANK(h)];
		watch_rank[wi] = RANK(h);
		watch_fence[2 * wi] = release_fence[2 * h];
#ifdef M_SKIP_A_FENCE
		watch_fence[2 * wi + 1] = NOBODY;
#else
		watch_fence[2 * wi + 1] = release_fence[2 * h + 1];
#endif
		watches[blk]++
	fi
}

inline lease_release(h, blk)
{
#ifdef M_LAST_RELEASES_FENCES
	if
	:: uses[2 * blk + TAG(h)] == 1 -> fences_watch(h, blk)
	:: else
	fi;
#else
	fences_watch(h, blk);
#endif
	uses[2 * blk + TAG(h)]--;
#ifdef M_FIRST_RELEASE_ENDS
	uses[2 * blk + TAG(h)] = 0;
#endif
#ifdef M_RELEASE_ALL_TAGS
	uses[2 * blk] = 0;
	uses[2 * blk + 1] = 0;
#endif
	if
	:: uses[2 * blk + TAG(h)] == 0 ->
		dirty = true;
		if
		:: !LEASED(blk) && !KEPT(blk) -> buffer_drop(blk)
		:: else
		fi
	:: else
	fi
}

#ifdef M_NOT_HELD_COUNTS
inline not_held(h)
{
	if
	:: part[rr] != NOBODY && uses[2 * part[rr] + 1 - TAG(h)] > 0 ->
		gp = part[rr];
		uses[2 * gp + 1 - TAG(h)]--;
		if
		:: !LEASED(gp) && !KEPT(gp) -> buffer_drop(gp)
		:: else
		fi
	:: else
	fi
}
#else
#define not_held(h) skip
#endif

/* Answers, or it waits. */
inline release_attempt(h)
{
	rr = RANK(h);
	if
	:: part[rr] != NOBODY && uses[2 * part[rr] + TAG(h)] > 0 ->
		gp = part[rr];
		lease_release(h, gp);
		release_reply[h] = 1
	:: else ->
		if
		/* Sent right behind its gather; if that waits, so does the release. */
		:: gather_waits[h] -> release_waits[h] = true
		:: else ->
			not_held(h);
			release_reply[h] = 2
		fi
	fi;
	if
	:: release_reply[h] != 0 ->
		release_waits[h] = false;
		release_fence[2 * h] = NOBODY;
		release_fence[2 * h + 1] = NOBODY
	:: else
	fi
}

/* ---- core/request.c -------------------------------------------------------------------------------------------- */

/* Takes the gather at place `where` out of the queue. */
inline dequeue(where)
{
	n = order[where];
	if
	:: wants_memory[n] ->
		memory_waiters--;
		wants_memory[n] = false;
		dirty = true
	:: else
	fi;
	gather_waits[n] = false;
	gather_uses[n] = 0;
	nwaiting--;
	n = where;
	do
	:: n < nwaiting ->
		order[n] = order[n + 1];
		n++
	:: else -> break
	od;
	order[nwaiting] = 0
}

inline settle_device()
{
	pass_blocked = false;
	at = 0;
	do
	:: at < nwaiting ->
		i = order[at];
		gather_attempt(i);
		if
		:: gather_reply[i] == 0 -> at++
		:: else -> dequeue(at)
		fi
	:: else -> break
	od;
	i = 0;
	do
	:: i < HOLDERS ->
		if
		:: release_waits[i] -> release_attempt(i)
		:: else
		fi;
		i++
	:: else -> break
	od
}

inline settle()
{
	do
	:: dirty ->
		dirty = false;
		settle_device()
	:: else -> break
	od;
	check()
}

/* zd_engine_check: found again from the objects themselves. */
inline check()
{
	n = 0;
	i = 0;
	do
#ifdef NO_CHECK
	:: false
#else
	:: i < BLOCKS ->
		if
		:: state[i] == FREE -> assert(!BUSY(i) && !LEASED(i))
		:: state[i] == QUARANTINED -> assert(BUSY(i) && !LEASED(i) && part[owner[i]] != i)
		:: else ->
			n++;
			assert(LEASED(i) || KEPT(i));
			assert(part[owner[i]] == i && attached[owner[i]]);
			assert((state[i] == INFLIGHT) == (transfers[i] > 0))
		fi;
		i++
#endif
	:: else -> break
	od;
#ifndef NO_CHECK
	assert(charged == n)
#endif
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

inline on_gather(h)
{
	gather_attempt(h);
	if
	:: gather_reply[h] == 0 ->
		gather_waits[h] = true;
		order[nwaiting] = h;
		nwaiting++
	:: else -> gather_uses[h] = 0
	fi;
	settle()
}

inline on_release(h)
{
	release_attempt(h);
	settle()
}

inline on_copied(blk)
{
	copied[blk]--;
	assert(transfers[blk] > 0);
	transfers[blk]--;
	if
	:: transfers[blk] == 0 && state[blk] == INFLIGHT -> state[blk] = AVAILABLE
	:: else
	fi;
	buffer_op_over(blk);
	settle()
}

/* Its fences have passed, or its session has ended and its streams with it. */
#define WATCH_OVER(x)                                                                                              \
	(watch_block[x] != NOBODY &&                                                                               \
	 (!attached[watch_rank[x]] || watch_session[x] != session[watch_rank[x]] ||                                \
	  (PASSED(client_page[2 * watch_rank[x]], watch_fence[2 * x]) &&                                           \
	   PASSED(client_page[1], watch_fence[2 * x + 1]))))

inline on_watch(x)
{
	gp = watch_block[x];
	watch_block[x] = NOBODY;
	watch_session[x] = 0;
	watch_rank[x] = 0;
	watch_fence[2 * x] = 0;
	watch_fence[2 * x + 1] = 0;
	assert(watches[gp] > 0);
	watches[gp]--;
	buffer_op_over(gp);
	settle()
}

/* The ticket is dropped: until then every stream that uses the bytes waits for its fences. */
inline drop_ticket(h)
{
	reply_block[h] = 0;
	reply_fence[2 * h] = NOBODY;
	reply_fence[2 * h + 1] = NOBODY
}

inline forget_calls(h)
{
	gather_waits[h] = false;
	gather_uses[h] = 0;
	gather_reply[h] = 0;
	drop_ticket(h);
	release_waits[h] = false;
	release_fence[2 * h] = NOBODY;
	release_fence[2 * h + 1] = NOBODY;
	release_reply[h] = 0
}

/* session_end(), zd_member_detach(): its requests, then its leases, then its shard, which makes its peer's copy stale. */
inline on_session_end(rk)
{
	at = 0;
	do
	:: at < nwaiting && RANK(order[at]) == rk -> dequeue(at)
	:: at < nwaiting && RANK(order[at]) != rk -> at++
	:: else -> break
	od;
	forget_calls(2 * rk);
	if
	:: rk == 0 -> forget_calls(1)
	:: else
	fi;
	if
	:: part[rk] != NOBODY ->
		gp = part[rk];
		uses[2 * gp] = 0;
		uses[2 * gp + 1] = 0;
		buffer_drop(gp);
#ifdef M_DEATH_FREES
		if
		:: state[gp] == QUARANTINED -> buffer_free(gp)
		:: else
		fi
#endif
	:: else
	fi;
	if
	:: part[1 - rk] != NOBODY -> stale[part[1 - rk]] = true
	:: else
	fi;
	attached[rk] = false;
	timeline[2 * rk] = 0;
	timeline[2 * rk + 1] = 0;
	daemon_page[2 * rk] = 0;
	daemon_page[2 * rk + 1] = 0;
	dirty = true;
	settle()
}

inline on_join(rk)
{
	rejoin[rk] = false;
	attached[rk] = true;
	session[rk]++; /* with pages of its own */
	taken[2 * rk] = 0;
	client_page[2 * rk] = 0;
	if
	:: rk == 0 -> taken[1] = 0; client_page[1] = 0
	:: else
	fi;
	dirty = true;
	settle()
}

#ifdef PERSISTENT
/* Somebody has published: rank 0's copy is of a former version. */
inline on_publish()
{
	publishes--;
	if
	:: part[0] != NOBODY && !LEASED(part[0]) && !KEPT(part[0]) -> gp = part[0]; buffer_drop(gp)
	:: part[0] != NOBODY && (LEASED(part[0]) || KEPT(part[0])) -> stale[part[0]] = true
	:: else
	fi;
	dirty = true;
	settle()
}

inline on_set_persistent()
{
	persistent = false;
	if
	:: part[0] != NOBODY && !LEASED(part[0]) -> gp = part[0]; buffer_drop(gp)
	:: else
	fi;
	settle()
}
#endif
