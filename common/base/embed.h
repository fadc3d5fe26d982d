/* SPDX-License-Identifier: Apache-2.0 */
/*
 * embed.h - the contents of a file as an object of a program or library. The assembler reads the file, by its
 * path from the root of the tree. The compiler does not report the file as a dependency. The makefile
 * therefore names it as a prerequisite of the object file.
 */
#ifndef ZD_BASE_EMBED_H
#define ZD_BASE_EMBED_H

/* Declares and defines `const char name[]`, read-only: the bytes of the file, and a zero byte. */
#define ZD_EMBED(name, path)                                                                                 \
	__asm__(".pushsection .rodata\n"                                                                     \
	        ".balign 16\n"                                                                               \
	        ".globl " #name "\n"                                                                         \
	        ".hidden " #name "\n"                                                                        \
	        ".type " #name ", %object\n" #name ":\n"                                                     \
	        ".incbin \"" path "\"\n"                                                                     \
	        ".byte 0\n"                                                                                  \
	        ".size " #name ", . - " #name "\n"                                                           \
	        ".popsection\n");                                                                            \
	extern const char(name)[] __attribute__((visibility("hidden")))

#endif
