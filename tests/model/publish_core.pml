/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish_core.pml - the daemon's part of publish.pml: what daemon/core does for versions, under its functions' names.
 *
 * Two devices, one rank on each, one unit, whose copy has a slot: a rank's next copy waits until the former is out of it.
 */

mtype = { ABSENT, IDLE, UPDATE_WAIT, UPDATING, PUBLISHING, DETACHED, DYING, NONE, INFLIGHT, AVAILABLE, QUARANTINED };

/* Parts: a rank's shard. */
mtype state[2] = IDLE;
byte version[2] = START, committed[2] = START;
byte first[2];                         /* version that the part was registered with: nobody has published that */
byte readers[2];                       /* pushes given to executors and not seen to be over, and the viewer */
bool torn;
bool attached[2] = true, joining[2];   /* the rank has a session; its replacement asks for one */
bool registered[2] = true;             /* and has been told so */
byte session[2];                       /* its number: a replacement has another */

/* Buffers: a rank's copy. */
mtype buffer[2] = NONE;
byte buffer_version[2], transfers[2];
bool stale[2], leased[2], watched[2], views[2];
bool copied[4];                        /* rank * 2 + source: completions that the daemon has not seen */
chan copy_queue[2] = [2] of { byte };        /* to the executor of a source: for which rank */

/* Requests that wait, one of each kind of each rank, and their replies. That of an update is the state of its part. */
bool gather_waits[2], commit_waits[2];
byte want[2];                          /* version; 0: what is newest */
mtype gather_reply[2] = NONE, publish_reply[2] = NONE, commit_reply[2] = NONE;
mtype = { DONE, ERROR, BUSY, STATE, PEER_LOST };
bool fences_open[2];                   /* the publish has fences to watch */
bool committing[2];
byte committed_step;
bool dirty[2];

/* Ghost: what the bytes in flight or there were when they were sent. */
byte sent[6]; /* rank * 3 + piece */

/* Scratch of steps that nothing interrupts. */
hidden byte i, k, wanted, verdict;

#define READY         (attached[0] && attached[1])
#define HAS(r)        (buffer[r] == INFLIGHT || buffer[r] == AVAILABLE)
#define OPEN(r)       (state[r] == UPDATE_WAIT || state[r] == UPDATING || state[r] == PUBLISHING)
#define WRITTEN(r)    (state[r] == UPDATING || state[r] == PUBLISHING)
#define REGISTERED(r) (state[r] == IDLE || OPEN(r))
#ifdef M_EMPTY_IS_READ
#define EMPTY(r) false
#else
#define EMPTY(r) (version[r] == first[r])
#endif
#define ABOUT(r)      (REGISTERED(r) -> version[r] + (OPEN(r) || EMPTY(r) -> 1 : 0) : 0)
#define MAX(a, b)     ((a) > (b) -> (a) : (b))
#define NEWEST        MAX(1, MAX(ABOUT(0), ABOUT(1))) /* newest_version() */
#ifdef PERSISTENT
#define KEPT(r) (r == 0)
#else
#define KEPT(r) false
#endif

inline dirty_group()
{
	dirty[0] = true;
	dirty[1] = true
}

/* ---- core/part.c ----------------------------------------------------------------------------------------------- */

inline part_absent(r)
{
	state[r] = ABSENT;
	version[r] = 0;
	first[r] = 0;
	committed[r] = 0;
	dirty_group()
}

inline part_reader_done(src)
{
	assert(readers[src] > 0);
	readers[src]--;
	if
	:: readers[src] == 0 ->
#ifndef M_READERS_WAKE_NOBODY
		dirty[src] = true;
#endif
		if
		:: state[src] == DYING -> part_absent(src)
		:: else
		fi
	:: else
	fi
}

#ifdef IN_PLACE
#define OWN(r, src) ((r) == (src))
#else
#define OWN(r, src) false
#endif

/* ---- core/in_place.c ------------------------------------------------------------------------------------------- */

/* A copy in place is a viewer of the rank's shard from a lease until no stream that has used it is left. */
inline buffer_view(r)
{
#ifdef IN_PLACE
	if
	:: !views[r] -> views[r] = true; readers[r]++
	:: else
	fi
#else
	skip
#endif
}

#ifdef M_VIEWS_END_WITH_LEASES
#define VIEW_ENDS(r) (views[r] && !leased[r])
#else
#define VIEW_ENDS(r) (views[r] && !leased[r] && !watched[r])
#endif

inline buffer_view_done(r)
{
	if
	:: VIEW_ENDS(r) -> views[r] = false; part_reader_done(r)
	:: else
	fi
}

/* ---- core/buffer.c --------------------------------------------------------------------------------------------- */

/* What nobody will look at any more is not worth a state. */
inline forget_bytes(r)
{
	arrived[2 * r] = false;
	arrived[2 * r + 1] = false;
	k = 3 * r;
	do
	:: k < 3 * r + 3 ->
		slice[k] = 0;
		sent[k] = 0;
		k++
	:: else -> break
	od
}

inline buffer_free(r)
{
	assert(buffer[r] == QUARANTINED && !leased[r]);
	buffer[r] = NONE;
	buffer_version[r] = 0;
	stale[r] = false;
	forget_bytes(r);
	dirty[r] = true
}

inline buffer_drop(r)
{
	assert(HAS(r) && !leased[r]);
	buffer[r] = QUARANTINED;
	dirty[r] = true;
	if
	:: transfers[r] == 0 && !watched[r] -> buffer_free(r)
	:: else
	fi
}

inline buffer_op_over(r)
{
	if
	:: transfers[r] == 0 && !watched[r] ->
		dirty[r] = true;
		if
		:: buffer[r] == QUARANTINED -> buffer_free(r)
		:: else
		fi
	:: else
	fi
}

inline push(r, src)
{
	if
	:: OWN(r, src)
	:: else -> transfers[r]++; readers[src]++; copy_queue[src]!r
	fi
}

/* A push of each shard, but of none into its own place. From here on the copy is written, and the shards are read. */
inline buffer_transfer(r, of_version)
{
	assert(transfers[r] == 0 && !use[r]);
	buffer[r] = INFLIGHT;
	buffer_version[r] = of_version;
	stale[r] = false;
	transfers[r] = 0;
	forget_bytes(r);
	sent[3 * r] = piece[0];
	sent[3 * r + 1] = piece[1];
	sent[3 * r + 2] = piece[2];
	push(r, 0);
	push(r, 1)
}

/* ---- core/gather.c --------------------------------------------------------------------------------------------- */

/* A copy that is joined holds what its shards hold, where those are of its version. */
inline joined_check(r)
{
	k = 0;
	do
	:: k < 3 ->
		assert(OWN(r, SHARD(k)) || state[SHARD(k)] != IDLE || version[SHARD(k)] != buffer_version[r] || sent[3 * r + k] == piece[k]);
		k++
	:: else -> break
	od
}

/* Nothing is gathered that its writer did not live to commit. */
#define COMMITTED_OR_ALIVE(k) (AUTHOR(piece[k]) == session[SHARD(k)] || VERSION(piece[k]) <= committed[SHARD(k)])

inline gather_done(r)
{
	assert(want[r] -> buffer_version[r] == want[r] : buffer_version[r] >= version[r]);
#ifdef DURABLE
	assert(COMMITTED_OR_ALIVE(0) && COMMITTED_OR_ALIVE(1) && COMMITTED_OR_ALIVE(2));
#endif
	leased[r] = true;
	buffer_view(r);
	gather_reply[r] = DONE
}

/* No lease begins while the own part is under update. */
#if defined(IN_PLACE) && !defined(M_LEASE_UNDER_UPDATE)
#define MAY_VIEW(r) (!OPEN(r) && version[r] == buffer_version[r])
#else
#define MAY_VIEW(r) true
#endif

/* buffer_has() */
#ifdef M_JOIN_STALE
#define JOINS(r) (HAS(r) && !stale[r])
#elif defined(M_JOIN_OF_THE_LOST)
#define JOINS(r) (HAS(r) && (want[r] -> buffer_version[r] == want[r] : buffer_version[r] >= version[r]))
#else
#define JOINS(r) (HAS(r) && !stale[r] && MAY_VIEW(r) && \
                  (want[r] -> buffer_version[r] == want[r] : buffer_version[r] >= version[r]))
#endif

#ifdef M_READ_WHILE_WRITTEN
#define SHUT(src) false
#define LOST(src) false
#else
#define SHUT(src) (OPEN(src) || EMPTY(src))
#define LOST(src) (WRITTEN(src) || EMPTY(src))
#endif

/* verdict: NONE it waits, ERROR the version is no longer held, DONE every shard is idle and has it. */
inline shard_check(src)
{
	if
	:: verdict != DONE
	:: verdict == DONE && !REGISTERED(src) -> verdict = NONE
#ifdef M_ANY_VERSION
	:: verdict == DONE && REGISTERED(src) && WRITTEN(src) -> verdict = NONE
#else
	:: verdict == DONE && REGISTERED(src) && (version[src] > wanted || (version[src] == wanted && LOST(src))) ->
		verdict = ERROR
#endif
	:: else ->
		if
		:: version[src] < wanted || SHUT(src) -> verdict = NONE
		:: else
		fi
	fi
}

inline gather_start(r)
{
	wanted = (want[r] -> want[r] : NEWEST);
	verdict = DONE;
	shard_check(0);
	shard_check(1);
	if
	:: verdict == ERROR -> gather_reply[r] = ERROR
	:: verdict == DONE && buffer[r] == NONE -> /* gather_place */
		buffer_transfer(r, wanted);
		gather_done(r)
	:: verdict == DONE && HAS(r) && !leased[r] && transfers[r] == 0 && !watched[r] -> /* gather_refresh */
		buffer_transfer(r, wanted);
		gather_done(r)
	:: else /* waits for versions, for its slot, for the last use of the copy */
	fi
}

/* gather_check() */
#if defined(M_TORN_IS_FORGOTTEN)
#define REFUSED (!READY)
#elif defined(M_LOST_PEER_IS_WAITED_FOR)
#define REFUSED torn
#else
#define REFUSED (!READY || torn)
#endif

inline gather_attempt(r)
{
	if
	:: REFUSED -> gather_reply[r] = ERROR
	:: !REFUSED && JOINS(r) -> joined_check(r); gather_done(r)
	:: else -> gather_start(r)
	fi;
	gather_waits[r] = (gather_reply[r] == NONE);
	if
	:: !gather_waits[r] -> want[r] = 0
	:: else
	fi
}

inline release(r)
{
	assert(leased[r] && HAS(r));
	leased[r] = false;
	watched[r] = use[r];
	dirty[r] = true;
	buffer_view_done(r);
	if
	:: !KEPT(r) -> buffer_drop(r)
	:: else
	fi
}

/* ---- core/update.c --------------------------------------------------------------------------------------------- */

inline update_attempt(r)
{
	if
#ifdef M_UPDATE_UNDER_PUSHES
	:: true -> state[r] = UPDATING
#else
	:: readers[r] == 0 -> state[r] = UPDATING
#endif
	:: else
	fi
}

inline update_cancel(r)
{
	state[r] = IDLE;
	dirty_group()
}

/* publish_begin() */
inline publish_begin(r, force)
{
	assert(state[r] == UPDATING);
	if
	:: HAS(r) && leased[r] && !force -> publish_reply[r] = BUSY
	:: else ->
		state[r] = PUBLISHING;
		fences_open[r] = WRITES(r);
		dirty[r] = true
	fi
}

inline publish_attempt(r)
{
	fences_open[r] = false;
	state[r] = IDLE;
	version[r]++;
	publish_reply[r] = DONE;
	assert(VERSION(piece[2 * r]) == version[r]);
	assert(r == 1 || VERSION(piece[1]) == version[r]);
	if
	:: HAS(r) && !leased[r] && !KEPT(r) -> buffer_drop(r)
	:: else
	fi;
#ifndef M_PUBLISH_WAKES_NOBODY
	dirty_group()
#endif
}

/* Every rank has come: decides for all of them. The whole of a commit is of one version. */
inline commit_evaluate()
{
	if
#ifndef M_COMMIT_UNCHECKED
	:: state[0] != IDLE || state[1] != IDLE || version[0] != version[1] ->
		commit_reply[0] = STATE;
		commit_reply[1] = STATE
#endif
	:: else ->
		assert(VERSION(piece[0]) == version[0] && VERSION(piece[1]) == version[0]);
		assert(VERSION(piece[2]) == version[0]);
		committed[0] = version[0];
		committed[1] = version[1];
		committed_step++;
		torn = false;
		commit_reply[0] = DONE;
		commit_reply[1] = DONE
	fi;
	committing[0] = false;
	committing[1] = false;
	commit_waits[0] = false;
	commit_waits[1] = false;
	dirty_group()
}

inline commit_attempt(r)
{
	if
	:: !READY ->
#ifdef M_COMMIT_TO_BE_REPEATED
		commit_reply[r] = STATE;
#else
		commit_reply[r] = PEER_LOST;
#endif
		committing[r] = false;
		commit_waits[r] = false
	:: READY && committing[0] && committing[1] -> commit_evaluate()
	:: else -> commit_waits[r] = true
	fi
}

/* ---- core/unit.c, core/group.c --------------------------------------------------------------------------------- */

/* Copies that have it in them stay with their holders, and are joined by nobody. */
inline part_drop(r)
{
	stale[0] = stale[0] || HAS(0);
	stale[1] = stale[1] || HAS(1);
	if
	:: readers[r] == 0 -> part_absent(r)
	:: else -> state[r] = DYING
	fi
}

inline part_detach(r)
{
	if
	:: state[r] == ABSENT || state[r] == DYING
	:: else ->
		if
		:: HAS(r) -> leased[r] = false; buffer_view_done(r); buffer_drop(r)
		:: else
		fi;
#ifdef DURABLE
		state[r] = DETACHED
#else
		part_drop(r)
#endif
	fi
}

#ifdef M_REUSE_UNDER_PUSHES
#define REGISTERS(r) (joining[r] && attached[r] && READY)
#else
#define REGISTERS(r) (joining[r] && attached[r] && READY && state[r] != DYING)
#endif

/* A rank that replaces another starts one version behind the others: first_version(). */
inline register_attempt(r)
{
	if
	:: state[r] == DETACHED -> state[r] = IDLE
	:: else ->
		assert(readers[r] == 0);
		state[r] = IDLE;
		version[r] = (EMPTY(1 - r) || version[1 - r] == 0 -> version[1 - r] : version[1 - r] - 1);
		first[r] = version[r];
		piece[2 * r] = 0;
		if
		:: r == 0 -> piece[1] = 0
		:: else
		fi
	fi;
	joining[r] = false;
	registered[r] = true;
	dirty_group()
}

/* ---- core/request.c -------------------------------------------------------------------------------------------- */

#ifdef M_PUBLISH_IGNORES_FENCES
#define PUBLISHES(r) (state[r] == PUBLISHING)
#else
#define PUBLISHES(r) (state[r] == PUBLISHING && !fences_open[r])
#endif

inline settle_device(r)
{
	if
	:: REGISTERS(r) -> register_attempt(r)
	:: else
	fi;
	if
	:: gather_waits[r] -> gather_attempt(r)
	:: else
	fi;
	if
	:: state[r] == UPDATE_WAIT -> update_attempt(r)
	:: else
	fi;
	if
	:: PUBLISHES(r) -> publish_attempt(r)
	:: else
	fi;
	if
	:: commit_waits[r] -> commit_attempt(r)
	:: else
	fi
}

inline settle()
{
	do
	:: dirty[0] -> dirty[0] = false; settle_device(0)
	:: !dirty[0] && dirty[1] -> dirty[1] = false; settle_device(1)
	:: else -> break
	od;
	check(0);
	check(1)
}

/* zd_engine_check(): found again from the objects. */
inline check(r)
{
#ifndef NO_CHECK
	assert((buffer[r] == NONE) == (transfers[r] == 0 && !watched[r] && !HAS(r)));
	assert((buffer[r] == INFLIGHT) -> transfers[r] > 0 : true);
	assert(HAS(r) -> (leased[r] || KEPT(r)) && attached[r] : !leased[r]);
	assert(WRITTEN(r) -> readers[r] == 0 && attached[r] : true);
	assert(views[r] -> leased[r] || watched[r] : true);
	assert((state[r] == DYING) -> readers[r] > 0 : true)
#else
	skip
#endif
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

inline on_gather(r)
{
	gather_attempt(r);
	settle()
}

inline on_release(r)
{
	release(r);
	settle()
}

inline on_update_begin(r)
{
	assert(state[r] == IDLE);
	state[r] = UPDATE_WAIT;
	update_attempt(r);
	settle()
}

inline on_publish(r, force)
{
	publish_begin(r, force);
	settle()
}

inline on_commit(r)
{
	committing[r] = true;
	commit_attempt(r);
	settle()
}

inline on_copied(r, src)
{
	copied[2 * r + src] = false;
	transfers[r]--;
	if
	:: transfers[r] == 0 && buffer[r] == INFLIGHT -> buffer[r] = AVAILABLE
	:: else
	fi;
	buffer_op_over(r);
	part_reader_done(src);
	settle()
}

inline on_watch(r)
{
	watched[r] = false;
	buffer_view_done(r);
	buffer_op_over(r);
	settle()
}

inline on_fences(r)
{
	fences_open[r] = false;
	dirty[r] = true;
	settle()
}

inline on_deadline(r)
{
	update_cancel(r);
	settle()
}

/* Is the rank gone between update_begin and commit: member_tears(). */
#ifdef M_TORN_ONLY_IN_UPDATES
#define TEARS(r) WRITTEN(r)
#elif defined(M_TORN_ONLY_AFTER_UPDATES)
#define TEARS(r) (state[r] != ABSENT && version[r] != committed[r])
#else
#define TEARS(r) (WRITTEN(r) || (state[r] != ABSENT && version[r] != committed[r]))
#endif

/* What the process had on its streams is not done any more, so that its watches are over. */
inline streams_end(r)
{
	use[r] = false;
	write[2 * r] = false;
	writing[2 * r] = false;
	if
	:: r == 0 -> write[1] = false; writing[1] = false
	:: else
	fi
}

/* session_end(): its requests, as zd_requests_drop(), then zd_member_detach(). */
inline on_session_end(r)
{
	if
	:: state[r] == UPDATE_WAIT -> update_cancel(r)
	:: state[r] == PUBLISHING -> state[r] = UPDATING
	:: else
	fi;
	fences_open[r] = false;
	gather_waits[r] = false;
	want[r] = 0;
	commit_waits[r] = false;
	committing[r] = false;
	joining[r] = false;
	registered[r] = false;
	gather_reply[r] = NONE;
	publish_reply[r] = NONE;
	commit_reply[r] = NONE;
#ifdef DURABLE
	torn = torn || TEARS(r);
#endif
	streams_end(r);
	part_detach(r);
	attached[r] = false;
	dirty_group();
	settle()
}

inline on_join(r)
{
	attached[r] = true;
	session[r]++;
	dirty_group();
	settle()
}
