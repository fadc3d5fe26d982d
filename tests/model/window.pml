/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.pml - windows of backwards that overlap, and how one ends for all ranks, for spin.
 *
 * Two ranks run ROUNDS windows of one backward and one unit. A rank asks for its step while its backward ends, is promised its
 * target, asks for the step's end and begins the next window, while sums and step of the one before are under way (core/window.c,
 * step.c, backward.c); its stream writes gradients, waits for promised targets and reads them. It may abandon a window at any
 * point, and rank 1 may die. An executor sums in any order; a window's reduction is reduce.c's record of it.
 *
 * What must hold: a sum reads what was written for its window (sum), into that window's target; a stream finds this sum in the
 * target, which is there until the stream has read it (queue); steps are decided in order, and alike by both ranks (tell); what
 * was abandoned is abandoned for both, and nothing else is; one window of a rank closes at a time (check); nobody waits for ever
 * (no invalid end state), and in the end no target is left (trainer).
 *
 * Sizes and variants: ROUNDS, TARGETS (blocks of a rank: 1 or 2), ABANDONS, DEATHS. M_* break one rule each: see the file
 * mutations.
 */

#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef TARGETS
#define TARGETS 2
#endif
#ifndef ABANDONS
#define ABANDONS 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

/* A rank's windows: the one in which it begins backwards, and the one that closes. */
#define CUR(r)  (r)
#define CLO(r)  (2 + (r))
#define RANK(w) ((w) % 2)
#define OF(k, r) (2 * (k) + (r)) /* what a rank has in window number k */
#define PLACE(k, r) (2 * (r) + (k) % 2) /* of its gradient, in the bucket */
#define NOWHERE 2

mtype = { IDLE, STARTING, RUNNING, ENDING };                  /* backwards */
mtype = { NONE, READY, CALLED, WAITING, TAKEN, LEFT };        /* steps; LEFT: the group has failed meanwhile */
mtype = { COLLECTING, SUMMING, FAILED, OVER };                /* reductions */
mtype = { OK, ABANDONED, LOST };                              /* answers */
mtype = { WRITE, AWAIT, READ, SIGNAL };                       /* work of a stream */

/* ---- Ranks' windows (struct zd_window) ------------------------------------------------------------------------- */

byte number[4];
bool begun[4];      /* stage > 0: it has a backward, and its step is not taken */
mtype backward[4] = IDLE;
mtype step[4] = NONE;
bool promise[4];
byte target[4] = NOWHERE; /* a block of the rank's */
bool closes[2];     /* the rank's CLO is there */
bool abandoned[2], told[2], past[2]; /* of CUR; of the window that was left for it */
byte enders[2];     /* step_ends that wait */
bool lost;          /* the group has failed */
bool dirty;         /* an event has not been seen to its end */

/* ---- Reductions and memory ------------------------------------------------------------------------------------- */

mtype reduction[ROUNDS] = COLLECTING;
bool made[2 * ROUNDS], ready[2 * ROUNDS], given[2 * ROUNDS], summed[2 * ROUNDS];
byte sums_to[2 * ROUNDS]; /* block */
byte gradient[4];         /* what streams have written: window + 1 */
byte entry[4];            /* who has the place: window + 1; 0: nobody */
bool reserved[2];         /* the rank's entry, and not submitted */
byte block_of[4], block_holds[4], block_uses[4]; /* rank * 2 + block: a window + 1 each; 0: free, nothing */
bool block_dropped[4];

/* ---- Trainers and streams -------------------------------------------------------------------------------------- */

bool alive[2] = true;
mtype begin_reply[2] = NONE, step_reply[2] = NONE, abandon_reply[2] = NONE;
bool step_asked[2], abandon_asked[2];
bool step_ahead[2]; /* the answer is a promise */
byte step_target[2];
bool busy[2];       /* the stream waits for a promise */
chan stream[2] = [6] of { mtype, byte, byte };
bool passed[2 * ROUNDS]; /* the promise of the window's step */
bool signalled[2 * ROUNDS];         /* the fence that the window's step_end names */
byte reading[2 * ROUNDS] = NOWHERE; /* the block that is used until then */

/* ---- What nobody in the real program knows --------------------------------------------------------------------- */

bool given_up[ROUNDS]; /* a rank has abandoned it */
mtype outcome[ROUNDS] = NONE;
byte next_told[2]; /* the window whose step is decided next, or a later one */
byte abandons = ABANDONS, deaths = DEATHS;

hidden byte w, v, o, q, k, b, x, y; /* scratch of steps that nothing interrupts */
hidden byte changed;

#include "window_core.pml"

/* ---- Processes ------------------------------------------------------------------------------------------------- */

/* In order: gradients are written, and behind a step's promise its target is read. */
proctype queue(byte r)
{
	byte n, which;
end:
	do
	:: atomic { !dirty && alive[r] && stream[r]?[WRITE, n, which] -> stream[r]?WRITE, n, which;
		d_step { gradient[PLACE(n, r)] = n + 1; on_written(r, n); n = 0; which = 0 } }
	:: atomic { !dirty && alive[r] && stream[r]?[AWAIT, n, which] -> stream[r]?AWAIT, n, which; busy[r] = true };
end_await:
		passed[OF(n, r)] -> busy[r] = false
	:: atomic { !dirty && alive[r] && stream[r]?[READ, n, which] -> stream[r]?READ, n, which;
		d_step {
			assert(block_of[2 * r + which] == n + 1);
			assert(lost || block_holds[2 * r + which] == n + 1);
			n = 0; which = 0 } }
	:: atomic { !dirty && alive[r] && stream[r]?[SIGNAL, n, which] -> stream[r]?SIGNAL, n, which;
		d_step { on_read(r, n); n = 0; which = 0 } }
	od
}

inline sum(n, r)
{
	assert(gradient[PLACE(n, 0)] == n + 1 && gradient[PLACE(n, 1)] == n + 1);
	assert(block_of[2 * r + sums_to[OF(n, r)]] == n + 1);
	block_holds[2 * r + sums_to[OF(n, r)]] = n + 1;
	on_summed(n, r)
}

#define MAY_SUM(n, r) (!dirty && given[OF(n, r)] && !summed[OF(n, r)])

proctype executor()
{
end:
	do
	:: d_step { MAY_SUM(0, 0) -> sum(0, 0) }
	:: d_step { MAY_SUM(0, 1) -> sum(0, 1) }
#if ROUNDS > 1
	:: d_step { MAY_SUM(1, 0) -> sum(1, 0) }
	:: d_step { MAY_SUM(1, 1) -> sum(1, 1) }
#endif
#if ROUNDS > 2
	:: d_step { MAY_SUM(2, 0) -> sum(2, 0) }
	:: d_step { MAY_SUM(2, 1) -> sum(2, 1) }
#endif
	od
}

proctype daemon()
{
end:
	do
	:: d_step { dirty -> settle(); dirty = false }
	od
}

proctype death()
{
end:
	do
	:: d_step { !dirty && deaths > 0 -> deaths--; alive[1] = false; on_death() }
	od
}

#define MAY_ABANDON d_step { abandons > 0 -> abandons-- }

/* Windows number 0 .. ROUNDS - 1. The library lets two ended steps be under way, and no more. */
proctype trainer(byte r)
{
	byte n;
	bool written;

	{
		do
		:: n < ROUNDS ->
			enders[r] < 2;
			d_step { !dirty -> begin_reply[r] = NONE; on_begin(r) };
			begin_reply[r] != NONE;
			if
			:: begin_reply[r] == LOST -> break
			:: else
			fi;
			assert(number[CUR(r)] == n || lost);
			d_step { !dirty && (lost || entry[PLACE(n, r)] == 0) -> entry[PLACE(n, r)] = n + 1; reserved[r] = true };
			if
			:: stream[r]!WRITE, n, 0; written = true
			:: MAY_ABANDON -> goto to_abandon
			fi;
			if
			:: d_step { !dirty -> on_submit(r) }
			:: MAY_ABANDON -> goto to_abandon
			fi;
			if
			:: d_step { !dirty -> on_end(r) }
			:: MAY_ABANDON -> goto to_abandon
			fi;
			if
			:: goto to_close
			:: MAY_ABANDON
			fi;
to_abandon:
			abandon_reply[r] = NONE;
			d_step { !dirty -> on_abandon(r) };
			abandon_reply[r] != NONE;
			if
			:: abandon_reply[r] == LOST -> break
			:: abandon_reply[r] == OK -> goto to_next /* its next backward is enough */
			:: abandon_reply[r] == OK
			fi;
to_close:
			step_reply[r] = NONE;
			d_step { !dirty -> on_step_begin(r) };
			step_reply[r] != NONE;
			if
			:: step_reply[r] == LOST -> break
			:: step_reply[r] == ABANDONED -> d_step { !dirty -> on_step_end(r, n, NOWHERE) }
			:: step_reply[r] == OK ->
				if
				:: step_ahead[r] -> stream[r]!AWAIT, n, 0
				:: else
				fi;
				stream[r]!READ, n, step_target[r];
				stream[r]!SIGNAL, n, 0;
				d_step { !dirty -> on_step_end(r, n, step_target[r]) }
			fi;
to_next:
			written = false;
			n++
		:: else -> break
		od;
		written = false;
		n = 0;
		enders[r] == 0 && !busy[r] && empty(stream[r]);
		if
		:: lost -> d_step { !dirty -> on_give_up(r) }
		:: else
		fi;
		block_of[2 * r] == 0 && block_of[2 * r + 1] == 0
	}
	unless { !alive[r] }
}

init
{
	atomic {
		run queue(0); run queue(1); run executor(); run daemon(); run death();
		run trainer(0); run trainer(1)
	}
}
