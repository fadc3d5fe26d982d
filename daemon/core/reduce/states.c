/* SPDX-License-Identifier: Apache-2.0 */
/* states.c - the life cycles of windows, buckets, entries, reductions and slices, as tables. */
#include "core/reduce/slice.h"

#define TO(state) ZD_SM_TO(state)

static const char *const backward_names[] = {"IDLE", "STARTING", "RUNNING", "ENDING"};
static const uint32_t backward_moves[] = {
        [ZD_BACKWARD_IDLE] = TO(ZD_BACKWARD_STARTING),
        [ZD_BACKWARD_STARTING] = TO(ZD_BACKWARD_RUNNING) | TO(ZD_BACKWARD_IDLE),
        [ZD_BACKWARD_RUNNING] = TO(ZD_BACKWARD_ENDING) | TO(ZD_BACKWARD_IDLE),
        [ZD_BACKWARD_ENDING] = TO(ZD_BACKWARD_IDLE) | TO(ZD_BACKWARD_RUNNING),
};
const struct zd_sm zd_sm_backward = {"backward", ZD_ARRAY_LEN(backward_names), backward_names,
                                     backward_moves};

static const char *const step_names[] = {"NONE",    "READY", "CALLED",   "ZEROING",
                                         "WAITING", "TAKEN", "ABANDONED"};
static const uint32_t step_moves[] = {
        [ZD_STEP_NONE] = TO(ZD_STEP_READY) | TO(ZD_STEP_CALLED) | TO(ZD_STEP_ABANDONED),
        [ZD_STEP_READY] = TO(ZD_STEP_ZEROING) | TO(ZD_STEP_NONE) | TO(ZD_STEP_ABANDONED),
        /* to ABANDONED: it was promised */
        [ZD_STEP_CALLED] = TO(ZD_STEP_ZEROING) | TO(ZD_STEP_NONE) | TO(ZD_STEP_ABANDONED),
        /* to TAKEN: of an abandoned window, or a failed one whose step was promised */
        [ZD_STEP_ZEROING] = TO(ZD_STEP_WAITING) | TO(ZD_STEP_TAKEN) | TO(ZD_STEP_READY) | TO(ZD_STEP_NONE) |
                            TO(ZD_STEP_ABANDONED),
        [ZD_STEP_WAITING] = TO(ZD_STEP_TAKEN) | TO(ZD_STEP_READY) | TO(ZD_STEP_NONE) | TO(ZD_STEP_ABANDONED),
        [ZD_STEP_TAKEN] = TO(ZD_STEP_NONE) | TO(ZD_STEP_ABANDONED),
        [ZD_STEP_ABANDONED] = TO(ZD_STEP_NONE),
};
const struct zd_sm zd_sm_step = {"step", ZD_ARRAY_LEN(step_names), step_names, step_moves};

static const char *const bucket_slot_names[] = {"FREE", "OPEN", "CLOSED"};
static const uint32_t bucket_slot_moves[] = {
        [ZD_BUCKET_SLOT_FREE] = TO(ZD_BUCKET_SLOT_OPEN),
        [ZD_BUCKET_SLOT_OPEN] = TO(ZD_BUCKET_SLOT_CLOSED) | TO(ZD_BUCKET_SLOT_FREE),
        [ZD_BUCKET_SLOT_CLOSED] = TO(ZD_BUCKET_SLOT_FREE) | TO(ZD_BUCKET_SLOT_OPEN), /* OPEN: ahead */
};
const struct zd_sm zd_sm_bucket_slot = {"bucket slot", ZD_ARRAY_LEN(bucket_slot_names), bucket_slot_names,
                                        bucket_slot_moves};

static const char *const entry_names[] = {"WAITING",   "FILLING", "RESERVED", "ABANDONED",
                                          "SUBMITTED", "READY",   "DRAINED"};
static const uint32_t entry_moves[] = {
        [ZD_ENTRY_WAITING] = TO(ZD_ENTRY_FILLING) | TO(ZD_ENTRY_DRAINED),
        /* to SUBMITTED: cancelled, but the fill has not ended */
        [ZD_ENTRY_FILLING] = TO(ZD_ENTRY_RESERVED) | TO(ZD_ENTRY_SUBMITTED) | TO(ZD_ENTRY_DRAINED),
        [ZD_ENTRY_RESERVED] = TO(ZD_ENTRY_SUBMITTED) | TO(ZD_ENTRY_ABANDONED),
        [ZD_ENTRY_ABANDONED] = TO(ZD_ENTRY_DRAINED),
        [ZD_ENTRY_SUBMITTED] = TO(ZD_ENTRY_READY) | TO(ZD_ENTRY_DRAINED),
        [ZD_ENTRY_READY] = TO(ZD_ENTRY_DRAINED),
        [ZD_ENTRY_DRAINED] = 0,
};
const struct zd_sm zd_sm_entry = {"entry", ZD_ARRAY_LEN(entry_names), entry_names, entry_moves};

static const char *const reduction_names[] = {"COLLECTING", "RUNNING", "COMPLETE", "FAILED", "DROPPED"};
#define LOST (TO(ZD_REDUCTION_FAILED) | TO(ZD_REDUCTION_DROPPED))
static const uint32_t reduction_moves[] = {
        [ZD_REDUCTION_COLLECTING] = TO(ZD_REDUCTION_RUNNING) | TO(ZD_REDUCTION_COMPLETE) | LOST,
        [ZD_REDUCTION_RUNNING] = TO(ZD_REDUCTION_COMPLETE) | LOST,
        [ZD_REDUCTION_COMPLETE] = 0,
        [ZD_REDUCTION_FAILED] = TO(ZD_REDUCTION_DROPPED),
        [ZD_REDUCTION_DROPPED] = 0,
};
const struct zd_sm zd_sm_reduction = {"reduction", ZD_ARRAY_LEN(reduction_names), reduction_names,
                                      reduction_moves};

static const char *const contribution_names[] = {"NONE", "RESERVED", "SUBMITTED", "READY", "SKIPPED"};
static const uint32_t contribution_moves[] = {
        [ZD_CONTRIBUTION_NONE] = TO(ZD_CONTRIBUTION_RESERVED) | TO(ZD_CONTRIBUTION_SKIPPED),
        [ZD_CONTRIBUTION_RESERVED] = TO(ZD_CONTRIBUTION_SUBMITTED) | TO(ZD_CONTRIBUTION_NONE),
        [ZD_CONTRIBUTION_SUBMITTED] = TO(ZD_CONTRIBUTION_READY),
        [ZD_CONTRIBUTION_READY] = 0,
        [ZD_CONTRIBUTION_SKIPPED] = 0,
};
const struct zd_sm zd_sm_contribution = {"contribution", ZD_ARRAY_LEN(contribution_names), contribution_names,
                                         contribution_moves};

static const char *const slice_names[] = {"WAITING", "OPEN", "TURN", "DONE"};
static const uint32_t slice_moves[] = {
        [ZD_SLICE_WAITING] = TO(ZD_SLICE_OPEN),
        [ZD_SLICE_OPEN] = TO(ZD_SLICE_TURN) | TO(ZD_SLICE_DONE),
        [ZD_SLICE_TURN] = TO(ZD_SLICE_OPEN),
        [ZD_SLICE_DONE] = 0,
};
const struct zd_sm zd_sm_slice = {"slice", ZD_ARRAY_LEN(slice_names), slice_names, slice_moves};
