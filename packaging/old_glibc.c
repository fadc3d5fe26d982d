/* SPDX-License-Identifier: Apache-2.0 */
/*
 * old_glibc.c - what Debian's archives need of a glibc that is newer than the wheel's.
 */

/* glibc has it since 2.32. libgpg-error omits locks if it is set; zero is right for any program. */
extern char __libc_single_threaded;
char __libc_single_threaded;
