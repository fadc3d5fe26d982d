/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_main.c - main() of test programs that need no other.
 */
#include "tests/support/test.h"

int main(void)
{
	return test_run(NULL, NULL);
}
