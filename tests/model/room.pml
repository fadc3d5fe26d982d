/* SPDX-License-Identifier: Apache-2.0 */
/*
 * room.pml - gathers that wait for room on one device, for spin: served in order of arrival, so that nobody waits for ever.
 * With USERS the large one is another user's: neither user waits for the other, until the large one is favoured.
 *
 * Three holders, of two ranks, gather their units again and again: two small ones and one that needs the whole budget.
 * Each has a stream that uses the bytes until some time after the release. The daemon is gather_place() of core/gather.c,
 * with budget_check() and block_take(), and the queue of core/request.c and core/memory_queue.c. A favour lasts long enough here
 * for what is released to add up. What a copy is and who may share it is not here:
 * see lease.pml.
 *
 * What must hold: charges and blocks stay within their bounds (check), and no gather waits for ever (served), whatever the
 * order of events, as long as nobody is forgotten for ever. M_* break one rule each: see the file mutations.
 */

#define HOLDERS 3
#define ROOM    2 /* of the budget, and of the pool */
#define SIZE(h) (h == 2 -> 2 : 1)

bool holds[HOLDERS], quarantined[HOLDERS]; /* the copy of now; the former's block */
bool waits[HOLDERS], wants_memory[HOLDERS];
byte order[HOLDERS], nwaiting, memory_waiters[2]; /* these by user */
byte charged, taken;
bool blocked[2], dirty, favoured, passed_over;
#ifdef USERS
#define USER(h) (h == 2 -> 1 : 0)
#else
#define USER(h) 0
#endif

hidden byte at, i, n; /* scratch of steps that nothing interrupts */

/* ---- core/gather.c --------------------------------------------------------------------------------------------- */

#define NO_ROOM(h) (charged + SIZE(h) > ROOM || taken + SIZE(h) > ROOM)
#ifdef M_SMALL_ONES_PASS
#define TURN(h) true
#else
#define TURN(h) ((!favoured || h == 2) && (waits[h] -> !blocked[USER(h)] : memory_waiters[USER(h)] == 0))
#endif

inline gather_attempt(h)
{
	if
	:: !TURN(h) || NO_ROOM(h) ->
		blocked[USER(h)] = true;
		if
		:: waits[h] && !wants_memory[h] -> memory_waiters[USER(h)]++ /* zd_memory_note_wait() */
		:: else
		fi;
		wants_memory[h] = true
	:: else ->
		holds[h] = true;
		passed_over = h != 2 && (passed_over || waits[2]);
		charged = charged + SIZE(h);
		taken = taken + SIZE(h)
	fi
}

/* ---- core/request.c -------------------------------------------------------------------------------------------- */

inline enqueue(h)
{
	waits[h] = true;
	order[nwaiting] = h;
	nwaiting++;
	memory_waiters[USER(h)]++
}

inline dequeue(where)
{
	n = order[where];
	waits[n] = false;
	wants_memory[n] = false;
	memory_waiters[USER(n)]--;
	if
	:: n == 2 -> favoured = false
	:: else
	fi;
	dirty = true;
	nwaiting--;
	n = where;
	do
	:: n < nwaiting -> order[n] = order[n + 1]; n++
	:: else -> break
	od;
	order[nwaiting] = 0
}

inline settle_device()
{
	blocked[0] = false;
	blocked[1] = false;
	at = 0;
	do
	:: at < nwaiting ->
		i = order[at];
		gather_attempt(i);
		if
		:: holds[i] -> dequeue(at)
		:: else -> at++
		fi
	:: else -> break
	od
}

inline settle()
{
	do
	:: dirty -> dirty = false; settle_device()
	:: else -> break
	od;
	assert(charged <= taken && taken <= ROOM && memory_waiters[0] + memory_waiters[1] == nwaiting)
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

inline on_gather(h)
{
	gather_attempt(h);
	if
	:: holds[h]
	:: else -> enqueue(h)
	fi;
	settle()
}

/* Uncharged at once; the block is free when the stream has passed. */
inline on_release(h)
{
	holds[h] = false;
	charged = charged - SIZE(h);
	quarantined[h] = true;
	dirty = true;
	settle()
}

inline on_stream_passed(h)
{
	quarantined[h] = false;
	taken = taken - SIZE(h);
#ifndef M_FREED_WAKES_NOBODY
	dirty = true;
#endif
	settle()
}

proctype holder(byte h)
{
	do
	:: d_step { on_gather(h) }
		holds[h];
		d_step { !quarantined[h] -> on_release(h) }
	od
}

proctype stream(byte h)
{
end:
	do
	:: d_step { quarantined[h] -> on_stream_passed(h) }
	od
}

/* The large gather has waited for so long that the small ones were served before it. */
proctype clock()
{
end:
	do
	:: d_step { waits[2] && passed_over && !favoured -> favoured = true }
	od
}

init
{
	atomic {
		run holder(0); run holder(1); run holder(2);
		run stream(0); run stream(1); run stream(2);
#if defined(USERS) && !defined(M_NOBODY_IS_FAVOURED)
		run clock()
#endif
	}
}

ltl served { [] (waits[2] -> <> !waits[2]) && [] (waits[0] -> <> !waits[0]) }
