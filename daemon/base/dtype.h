/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - float16 and bfloat16 to float32 and back, and what each dtype may be used for. */
#ifndef ZD_BASE_DTYPE_H
#define ZD_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#include <zerod.h>

/* May gradients travel in it, and may a target have it: float32, float16, bfloat16. */
bool zd_dtype_reducible(enum zerod_dtype dtype);

float zd_bf16_to_f32(uint16_t bits);
uint16_t zd_f32_to_bf16(float value); /* round to nearest even; nan stays nan */
float zd_f16_to_f32(uint16_t bits);
uint16_t zd_f32_to_f16(float value); /* round to nearest even; overflow to inf; nan stays nan */

#endif
