/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.pml - leases, fences, quarantine and reuse of gathered storage, for spin.
 *
 * Two ranks on one device share a pool of BLOCKS blocks. Rank 0 has two holders (threads, each with a tag) and two streams,
 * rank 1 one of each. Holders gather, use the bytes on their streams and release with fences; a trainer may die at any
 * point and be replaced. lease_core.pml is the daemon, lease_trainer.pml a trainer; README.md says what is abstracted.
 *
 * What must hold: a block is handed out only when no copy into it and no use of it is left (buffer_transfer); who uses bytes
 * sees its own (stream); charges are those of the buffers that are there, and one is there exactly while somebody holds it
 * (check); a release of what is not held changes nothing (release_attempt); every call ends (no invalid end state, no
 * endless run).
 *
 * Sizes and variants, for run.sh: BLOCKS, BUDGET, ROUNDS0..2 (gathers of each holder), DEATHS, ALONE (who dies is not
 * replaced), PERSISTENT (rank 0's unit), PLAIN (no holder uses a lease twice or on two streams), NO_CHECK (only what a
 * trainer would notice counts). M_* break one rule each: see the file mutations.
 */

#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef BUDGET
#define BUDGET BLOCKS
#endif
#ifndef ROUNDS0
#define ROUNDS0 1
#endif
#ifndef ROUNDS1
#define ROUNDS1 1
#endif
#ifndef ROUNDS2
#define ROUNDS2 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define HOLDERS    3 /* holder h is a thread of rank RANK(h) with the tag TAG(h) and the stream h */
#define RANK(h)    ((h) / 2)
#define TAG(h)     ((h) % 2)
#define COPY_QUEUES      2 /* one for each source of a gather */
#define WATCHES    6
#define QUEUE      4
#define NOBODY     255
#define ROUNDS(h)  (h == 0 -> ROUNDS0 : (h == 1 -> ROUNDS1 : ROUNDS2))

/* Counters are cyclic and compared signed, as zd_fence_reached() does it with 64 bits. A fence is a value, or NOBODY. */
#define NEXT(value)             (((value) + 1) % 8)
#define REACHED(counter, value) (((counter) + 8 - (value)) % 8 < 4)
#define PASSED(counter, fence)  ((fence) == NOBODY || REACHED(counter, fence))

mtype = { NONE, FREE, INFLIGHT, AVAILABLE, QUARANTINED, USE, SIGNAL };

/* ---- Trainers' memory ------------------------------------------------------------------------------------------ */

bool alive[2] = true;      /* the rank's process runs */
byte taken[HOLDERS];       /* last value taken of the stream's timeline: zerod_stream.value */
byte client_page[HOLDERS]; /* what the stream has written */
/* Each stream's queue, at s * QUEUE: USE of a block behind its fences, or SIGNAL of a value. */
byte queued[HOLDERS];
mtype work[12];
byte work_value[12], work_fence[24];
bool gone[HOLDERS]; /* the thread of a process that ended has stopped */

/* One call of each kind of each holder. That a request takes its time on the socket makes no difference: it is as if it had
 * been sent later. A reply lies there until the holder looks. */
bool gather_waits[HOLDERS], release_waits[HOLDERS]; /* in the daemon */
byte gather_uses[HOLDERS];
byte gather_reply[HOLDERS]; /* 0 none yet, 1 granted, 2 an error */
byte reply_block[HOLDERS], reply_fence[6]; /* holder * 2 + queue */
byte release_fence[6];      /* holder * 2 + which of its rank's streams */
byte release_reply[HOLDERS]; /* 0 none yet, 1 done, 2 NOT_HELD */

/* ---- Executors' memory ----------------------------------------------------------------------------------------- */

byte bytes[2 * BLOCKS]; /* block * 2 + queue: whose, rank + 1; 0: being written */
chan copy_queue[COPY_QUEUES] = [BLOCKS + 1] of { byte, byte, byte, byte }; /* block, rank, session, value to signal */
byte daemon_page[4];    /* rank * 2 + queue */
byte copied[BLOCKS];    /* completions of copies that the daemon has not seen */
byte watch_block[WATCHES] = NOBODY;
byte watch_session[WATCHES], watch_rank[WATCHES], watch_fence[12]; /* watch * 2 + stream of the rank */

/* ---- What nobody in the real program knows --------------------------------------------------------------------- */

byte pending_uses[2 * BLOCKS]; /* rank * BLOCKS + block: appended and not over, of processes that run */
byte pending_copies[BLOCKS];
byte deaths = DEATHS;

#include "lease_core.pml"

proctype daemon()
{
	byte x;
end:
	do
	:: atomic {
		if
		:: copied[0] > 0 -> x = 0
#if BLOCKS > 1
		:: copied[1] > 0 -> x = 1
#endif
		fi;
		d_step { on_copied(x); x = 0 }
	}
	:: atomic {
		if
		:: WATCH_OVER(0) -> x = 0
		:: WATCH_OVER(1) -> x = 1
		:: WATCH_OVER(2) -> x = 2
		:: WATCH_OVER(3) -> x = 3
		:: WATCH_OVER(4) -> x = 4
		:: WATCH_OVER(5) -> x = 5
		fi;
		d_step { on_watch(x); x = 0 }
	}
	:: atomic {
		if
		:: !alive[0] && attached[0] -> x = 0
		:: !alive[1] && attached[1] -> x = 1
		fi;
		d_step { on_session_end(x); x = 0 }
	}
	:: atomic {
		if
		:: rejoin[0] -> x = 0
		:: rejoin[1] -> x = 1
		fi;
		d_step { on_join(x); x = 0 }
	}
#ifdef PERSISTENT
	:: d_step { publishes > 0 -> on_publish() }
	:: d_step { persistent -> on_set_persistent() }
#endif
	od
}

/* ---- Executors ------------------------------------------------------------------------------------------------- */

/* A copy queue: copies in order; the bytes first, then the signal, then the completion. */
proctype executor(byte l)
{
	byte blk, rk, of_session, value;
end:
	do
	:: atomic {
#ifdef M_SIGNAL_FIRST
		copy_queue[l]?<blk, rk, of_session, value>;
		daemon_page[2 * rk + l] = value
	   };
	   atomic {
#endif
		copy_queue[l]?blk, rk, of_session, value;
		assert(state[blk] != FREE);
		bytes[2 * blk + l] = rk + 1;
		pending_copies[blk]--;
		copied[blk]++;
		if
		:: attached[rk] && session[rk] == of_session -> daemon_page[2 * rk + l] = value
		:: else
		fi;
		blk = 0;
		rk = 0;
		of_session = 0;
		value = 0
	   }
	od
}

#include "lease_trainer.pml"

/* A process ends at any point: its threads stop where they are, its streams' work is not done any more. */
inline kill(rk)
{
	alive[rk] = false;
	deaths--;
#ifndef M_PROCESS_OUTLIVES_SESSION
	pending_uses[rk * BLOCKS] = 0;
#if BLOCKS > 1
	pending_uses[rk * BLOCKS + 1] = 0;
#endif
	n = 2 * rk;
	do
	:: n <= 1 + rk ->
		i = 0;
		do
		:: i < QUEUE -> work_clear(n, i); i++
		:: else -> break
		od;
		queued[n] = 0;
		n++
	:: else -> break
	od;
#endif
	n = 0
}

proctype death()
{
end:
	do
	:: d_step { deaths > 0 && alive[0] && attached[0] -> kill(0) }
	:: d_step { deaths > 0 && alive[1] && attached[1] -> kill(1) }
#ifndef ALONE
	:: d_step { !alive[0] && !attached[0] && gone[0] && gone[1] -> alive[0] = true; rejoin[0] = true }
	:: d_step { !alive[1] && !attached[1] && gone[2] -> alive[1] = true; rejoin[1] = true }
#endif
	od
}

init
{
	atomic {
		at = 0;
		do
		:: at < 6 -> reply_fence[at] = NOBODY; release_fence[at] = NOBODY; at++
		:: else -> break
		od;
		at = 0;
		do
		:: at < 12 -> work[at] = NONE; at++
		:: else -> break
		od;
		run daemon(); run executor(0); run executor(1);
		run stream(0); run stream(1); run stream(2);
		run holder(0); run holder(1); run holder(2);
		run death()
	}
}
