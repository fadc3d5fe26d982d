/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease_trainer.pml - the trainer's part of lease.pml: streams that work in order, holders that gather, use and release.
 *
 * A holder calls the daemon's on_*() itself; what libzerod adds are the fences, see take_fence() and append_use().
 */

inline work_clear(s, k)
{
	work[s * QUEUE + k] = NONE;
	work_value[s * QUEUE + k] = 0;
	work_fence[2 * (s * QUEUE + k)] = 0;
	work_fence[2 * (s * QUEUE + k) + 1] = 0
}

/* The piece of work at the head of the queue is over. */
inline work_over(s)
{
	queued[s]--;
	i = 0;
	do
	:: i < queued[s] ->
		work[s * QUEUE + i] = work[s * QUEUE + i + 1];
		work_value[s * QUEUE + i] = work_value[s * QUEUE + i + 1];
		work_fence[2 * (s * QUEUE + i)] = work_fence[2 * (s * QUEUE + i + 1)];
		work_fence[2 * (s * QUEUE + i) + 1] = work_fence[2 * (s * QUEUE + i + 1) + 1];
		i++
	:: else -> break
	od;
	work_clear(s, queued[s])
}

#define HEAD           (s * QUEUE)
#define OWN_BYTES(blk) (bytes[2 * (blk)] == RANK(s) + 1 && bytes[2 * (blk) + 1] == RANK(s) + 1)
#define MAY_RUN                                                                                                    \
	(PASSED(daemon_page[2 * RANK(s)], work_fence[2 * HEAD]) &&                                                 \
	 PASSED(daemon_page[2 * RANK(s) + 1], work_fence[2 * HEAD + 1]))

/* Does its work in order. Of a process that has ended it has none. */
proctype stream(byte s)
{
end:
	do
	:: d_step {
		queued[s] > 0 && work[HEAD] == SIGNAL ->
		client_page[s] = work_value[HEAD];
		work_over(s)
	   }
	:: d_step {
		queued[s] > 0 && work[HEAD] == USE && MAY_RUN ->
		assert(OWN_BYTES(work_value[HEAD]));
		pending_uses[RANK(s) * BLOCKS + work_value[HEAD]]--;
		work_over(s)
	   }
	od
}

/* zc_stream_wait() and a kernel behind it. */
inline append_use(s, blk)
{
	assert(queued[s] < QUEUE);
	n = s * QUEUE + queued[s];
	work[n] = USE;
	work_value[n] = blk;
	work_fence[2 * n] = reply_fence[2 * h];
	work_fence[2 * n + 1] = reply_fence[2 * h + 1];
	queued[s]++;
	pending_uses[RANK(h) * BLOCKS + blk]++
}

#ifdef M_IDLE_TOO_EARLY
#define IDLE(s) (queued[s] <= 1)
#else
#define IDLE(s) (queued[s] == 0)
#endif

/* take_value(): a value and its signal in one step; no fence when the stream is idle. */
inline take_fence(s)
{
	if
	:: IDLE(s) -> release_fence[2 * h + (s % 2)] = NOBODY
	:: else ->
		assert(queued[s] < QUEUE);
		taken[s] = NEXT(taken[s]);
		release_fence[2 * h + (s % 2)] = taken[s];
		work[s * QUEUE + queued[s]] = SIGNAL;
		work_value[s * QUEUE + queued[s]] = taken[s];
		queued[s]++
	fi
}

#define ROOM(s) (queued[s] + 2 <= QUEUE)

/* zerod_release() of what is held, or is not: answered at once. */
inline release(expected)
{
	on_release(h);
	assert(release_reply[h] == expected);
	release_reply[h] = 0
}

proctype holder(byte h)
{
	byte left, blk;
	bool twice, both;
end_dead:
	atomic {
		alive[RANK(h)] && attached[RANK(h)] ->
		gone[h] = false;
		left = ROUNDS(h)
	}
	{
		do
		:: left > 0 ->
			atomic {
				left--;
				gather_uses[h] = 1;
				if
#ifndef PLAIN
				:: h == 0 -> twice = true; gather_uses[h] = 2
				:: h == 0 -> both = true
#endif
				:: true
				fi;
				d_step { on_gather(h); skip }
			}
			if
			/* A release right behind the gather, without a look at the bytes. */
			:: !twice && !both ->
				d_step { on_release(h); skip }
				d_step {
					gather_reply[h] != 0 && release_reply[h] != 0 ->
					assert(gather_reply[h] == release_reply[h]);
					gather_reply[h] = 0;
					release_reply[h] = 0
				}
			:: d_step { gather_reply[h] == 2 -> gather_reply[h] = 0 }
			:: d_step {
				gather_reply[h] == 1 && ROOM(h) && (!both || ROOM(1)) ->
				blk = reply_block[h];
				append_use(h, blk);
				if
				:: both -> append_use(1, blk)
				:: else
				fi;
				gather_reply[h] = 0
			   }
			   d_step {
				ROOM(h) && (!both || ROOM(1)) ->
				take_fence(h);
				if
				:: both -> take_fence(1)
				:: else
				fi
			   }
			   d_step { release(1) }
			   if
			   :: twice ->
				d_step {
					ROOM(1) ->
					append_use(1, blk)
				}
				d_step { ROOM(1) -> take_fence(1) }
				d_step { release(1) }
			   :: else
			   fi
			fi;
			atomic { drop_ticket(h); blk = 0; twice = false; both = false }
		:: left == 0 ->
			/* Once more, of what is not held. */
			d_step { release(2) }
			break
		od;
end_done:
		false
	} unless { !alive[RANK(h)] }
	atomic { blk = 0; twice = false; both = false; left = 0; gone[h] = true; goto end_dead }
}
