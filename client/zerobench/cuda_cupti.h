/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_cupti.h - the part of CUPTI that zerobench uses. Its library is loaded at run time, and the build does
 * not need its headers. If they are installed, tests/unit/driver/test_abi.c compares this file with them.
 */
#ifndef ZD_BENCH_CUDA_CUPTI_H
#define ZD_BENCH_CUDA_CUPTI_H

#include <stddef.h>
#include <stdint.h>

struct CUctx_st;

enum zd_cupti_result { ZD_CUPTI_SUCCESS = 0, ZD_CUPTI_NO_MORE_RECORDS = 12 };
enum { ZD_CUPTI_CONCURRENT_KERNEL = 10 }; /* the records' kind */
enum { ZD_CUPTI_FLUSH_FORCED = 1 };

/* The first fields of a kernel's record, since CUDA 9. Times are ns; both 0: not known. */
struct zd_cupti_kernel {
	uint32_t kind;
	uint8_t cache_config, shared_memory_config;
	uint16_t registers;
	uint32_t cache_requested, cache_executed;
	uint64_t start_ns, end_ns, completed_ns;
	uint32_t device, context, stream;
	int32_t grid_x, grid_y, grid_z;
};

typedef void zd_cupti_requested_fn(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void zd_cupti_completed_fn(struct CUctx_st *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                   size_t valid_bytes);

/* F(member, name, arguments): functions that return a result of CUPTI. */
#define ZD_CUPTI_FUNCTIONS(F)                                                                                \
	F(registerCallbacks, cuptiActivityRegisterCallbacks,                                                 \
	  (zd_cupti_requested_fn * requested, zd_cupti_completed_fn * completed))                            \
	F(enable, cuptiActivityEnable, (int kind))                                                           \
	F(disable, cuptiActivityDisable, (int kind))                                                         \
	F(flushAll, cuptiActivityFlushAll, (uint32_t flag))                                                  \
	F(getNumDroppedRecords, cuptiActivityGetNumDroppedRecords,                                           \
	  (struct CUctx_st * context, uint32_t stream, size_t * dropped))                                    \
	F(getNextRecord, cuptiActivityGetNextRecord,                                                         \
	  (uint8_t * buffer, size_t valid_bytes, struct zd_cupti_kernel * *record))                          \
	F(getResultString, cuptiGetResultString, (int result, const char **text))

#endif
