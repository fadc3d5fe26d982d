/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.pml - versions: update, publish, gather, commit and deaths inside them, for spin.
 *
 * Two ranks, each with a thread that gathers and one that updates; three streams: rank 0's shard is written by two, in two
 * pieces, rank 1's by one. A copy is a push of each shard by the executor of its device. Writing and pushing take time:
 * they begin and end. A trainer may die at any point and be replaced. publish_core.pml is the daemon; README.md says what
 * is abstracted.
 *
 * What must hold: no shard is written while a push or a copy in place reads it (stream, executor, register_attempt); a gather's bytes are one
 * version of every shard, the one that was asked for and not older than what the rank has published (stream, gather_done);
 * a commit is of one version (commit_evaluate); of a rank that died nothing is gathered that was not committed
 * (COMMITTED_OR_ALIVE); every call ends, with PEER_LOST if a rank has gone (no invalid end state, no endless run).
 *
 * Sizes and variants, for run.sh: ROUNDS0..1 (gathers of each rank), START (version that is there), UPDATES (versions or,
 * with DURABLE, commits after it), DEATHS, ALONE (who dies is not replaced),
 * DEADLINES (of updates that wait), DURABLE (shards outlive sessions), PERSISTENT (rank 0's copy stays),
 * IN_PLACE (a copy's own slice is the shard, and updates wait for leases),
 * NO_CHECK (only what a trainer would notice counts). M_* break one rule each: see the file mutations.
 */

#ifndef ROUNDS0
#define ROUNDS0 1
#endif
#ifndef ROUNDS1
#define ROUNDS1 1
#endif
#ifndef START
#define START 1
#endif
#ifndef UPDATES
#define UPDATES 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef DEADLINES
#define DEADLINES 0
#endif

#define SHARD(s)   ((s) / 2) /* stream s writes piece s of that rank's shard */
#define STREAM(r)  (2 * (r)) /* the one that uses the rank's copy */
#define STREAMS(r) (2 - (r))

/* Bytes: who wrote them and as which version; 0 is what a new shard has. */
#define BYTES(author, v) (16 * (author) + (v))
#define VERSION(bytes)   ((bytes) % 16)
#define AUTHOR(bytes)    ((bytes) / 16)
#define HALF_WRITTEN     15

byte piece[3] = START;  /* the shards */
byte slice[6];          /* the copies: rank * 3 + piece; with IN_PLACE without the own ones */
bool write[3], use[2];  /* appended to the stream and not over */
bool writing[3];        /* a kernel is at it */
bool reading[4];        /* rank * 2 + source: a push is at it */
bool arrived[4];        /* the fence of that push has passed */
bool alive[2] = true;   /* the rank's process runs */
bool gone[4] = true;    /* rank * 2 + thread: it does not run, or has stopped with its process */
#define GONE(r) (gone[2 * (r)] && gone[2 * (r) + 1])
byte deaths = DEATHS, deadlines = DEADLINES;

#ifdef M_ONE_STREAMS_FENCE
#define WRITES(r) write[2 * (r)]
#else
#define WRITES(r) (write[2 * (r)] || (r == 0 && write[1]))
#endif

#include "publish_core.pml"

proctype daemon()
{
end:
	do
	:: d_step { copied[0] -> on_copied(0, 0) }
	:: d_step { copied[1] -> on_copied(0, 1) }
	:: d_step { copied[2] -> on_copied(1, 0) }
	:: d_step { copied[3] -> on_copied(1, 1) }
	:: d_step { watched[0] && !use[0] -> on_watch(0) }
	:: d_step { watched[1] && !use[1] -> on_watch(1) }
	:: d_step { fences_open[0] && !WRITES(0) -> on_fences(0) }
	:: d_step { fences_open[1] && !WRITES(1) -> on_fences(1) }
	:: d_step { deadlines > 0 && state[0] == UPDATE_WAIT -> deadlines--; on_deadline(0) }
	:: d_step { deadlines > 0 && state[1] == UPDATE_WAIT -> deadlines--; on_deadline(1) }
	:: d_step { !alive[0] && attached[0] && GONE(0) -> on_session_end(0) }
	:: d_step { !alive[1] && attached[1] && GONE(1) -> on_session_end(1) }
	:: d_step { alive[0] && joining[0] && !attached[0] -> on_join(0) }
	:: d_step { alive[1] && joining[1] && !attached[1] -> on_join(1) }
	od
}

/* A device's executor: pushes its shard, in order. */
proctype executor(byte source)
{
	byte r;
end:
	do
	:: d_step {
		copy_queue[source]?r;
		assert(!writing[2 * source] && (source == 1 || !writing[1]));
		reading[2 * r + source] = true
	   }
	   d_step {
		slice[3 * r + 2 * source] = piece[2 * source];
		if
		:: source == 0 -> slice[3 * r + 1] = piece[1]
		:: else
		fi;
		reading[2 * r + source] = false;
		arrived[2 * r + source] = true;
		copied[2 * r + source] = true;
		r = 0
	   }
	od
}

#define SLICE(r, k)    (OWN(r, SHARD(k)) -> piece[k] : slice[3 * (r) + (k)])
#define SLICE_IS(r, k) (VERSION(SLICE(r, k)) == buffer_version[r])
#define ARRIVED(r)     ((OWN(r, 0) || arrived[2 * (r)]) && (OWN(r, 1) || arrived[2 * (r) + 1]))

proctype stream(byte s)
{
end:
	do
	:: d_step {
		alive[SHARD(s)] && write[s] && !writing[s] ->
		assert(!reading[SHARD(s)] && !reading[2 + SHARD(s)]);
		assert(!OWN(SHARD(s), SHARD(s)) || !use[SHARD(s)]);
		writing[s] = true;
		piece[s] = HALF_WRITTEN
	   }
	:: d_step {
		alive[SHARD(s)] && writing[s] ->
		piece[s] = BYTES(session[SHARD(s)], version[SHARD(s)] + 1);
		writing[s] = false;
		write[s] = false
	   }
	:: d_step {
		s != 1 && alive[SHARD(s)] && use[SHARD(s)] && ARRIVED(SHARD(s)) ->
		assert(SLICE_IS(SHARD(s), 0) && SLICE_IS(SHARD(s), 1) && SLICE_IS(SHARD(s), 2));
		assert(SLICE(SHARD(s), 0) == SLICE(SHARD(s), 1));
		use[SHARD(s)] = false
	   }
	od
}

/* Gathers, uses, releases. */
proctype reader(byte r)
{
	byte left;
end_joining:
	atomic {
		alive[r] && registered[r] ->
		gone[2 * r] = false;
		left = (r == 0 -> ROUNDS0 : ROUNDS1)
	}
	{
		do
		:: left > 0 ->
			atomic {
				left--;
				if
				:: want[r] = 0
				:: version[r] > 0 -> want[r] = version[r]
				fi;
				d_step { on_gather(r) }
			}
			if
			:: d_step { gather_reply[r] == ERROR -> gather_reply[r] = NONE }
			:: d_step { gather_reply[r] == DONE -> gather_reply[r] = NONE; use[r] = true }
			   d_step { on_release(r); skip }
			fi
		:: left == 0 -> break
		od;
end_done:
		false
	} unless { !alive[r] }
	atomic { left = 0; gone[2 * r] = true; goto end_joining }
}

inline append_writes(r)
{
	write[2 * r] = true;
	if
	:: r == 0 -> write[1] = true
	:: else
	fi
}

/* Which version the rank is to write next, if any: the ranks of a job know it from each other. */
#ifdef DURABLE
#define BEHIND(r) (restore || version[r] < MAX(version[1 - (r)], committed[r] + 1))
#define ENDED     (committed_step == UPDATES)
#else
#define BEHIND(r) (version[r] < START + UPDATES)
#define ENDED     (version[r] == START + UPDATES)
#endif

/* Updates and publishes, and with DURABLE commits; what is torn is written anew. */
proctype updater(byte r)
{
	bool restore;
end_joining:
	atomic {
		alive[r] && registered[r] ->
		gone[2 * r + 1] = false;
		restore = torn
	}
	{
		do
		:: !ENDED && BEHIND(r) ->
			d_step { on_update_begin(r) }
			if
			:: state[r] == IDLE /* a deadline */
			:: atomic { state[r] == UPDATING -> append_writes(r); restore = false }
				if
				:: d_step { on_publish(r, true) }
				:: d_step { on_publish(r, false) }
				fi;
				if
				:: d_step { publish_reply[r] == BUSY -> publish_reply[r] = NONE; on_publish(r, true) }
				:: publish_reply[r] == DONE
				fi;
				d_step { publish_reply[r] == DONE -> publish_reply[r] = NONE }
			fi
#ifdef DURABLE
		:: !ENDED && !BEHIND(r) ->
			d_step { on_commit(r) }
			if
			:: d_step { commit_reply[r] == DONE || commit_reply[r] == STATE -> commit_reply[r] = NONE }
			:: d_step { commit_reply[r] == PEER_LOST -> commit_reply[r] = NONE }
end_alone:
				READY && registered[1 - r]
			fi
#endif
		:: ENDED -> break
		od;
end_done:
		false
	} unless { !alive[r] }
	atomic { restore = false; gone[2 * r + 1] = true; goto end_joining }
}

/* A process ends at any point: its threads stop where they are, and so do its streams. */
inline kill(r)
{
	alive[r] = false;
	deaths--
}

proctype death()
{
end:
	do
	:: d_step { deaths > 0 && alive[0] && attached[0] -> kill(0) }
	:: d_step { deaths > 0 && alive[1] && attached[1] -> kill(1) }
#ifndef ALONE
	:: d_step { !alive[0] && !attached[0] && GONE(0) -> alive[0] = true; joining[0] = true }
	:: d_step { !alive[1] && !attached[1] && GONE(1) -> alive[1] = true; joining[1] = true }
#endif
	od
}

init
{
	atomic {
		run daemon(); run executor(0); run executor(1);
		run stream(0); run stream(1); run stream(2);
		run reader(0); run reader(1); run updater(0); run updater(1);
		run death()
	}
}
