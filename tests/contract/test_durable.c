/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_durable.c - allocations of a durable job: what one session has written, a later one finds.
 */
#include "contract.h"

#define BYTES 5000u

static int keep(zerod_client *client, uint64_t bytes, zerod_allocation **buffer, void **data)
{
	struct zerod_alloc_options options = ZEROD_INIT(options);

	options.job = "contract";
	options.name = "adam";
	options.bytes = bytes;
	options.flags = ZEROD_ALLOC_DURABLE;
	return zerod_alloc(client, &options, buffer, data);
}

static void test_later_session_finds_the_bytes(void **state)
{
	contract_needs(CONTRACT_ONE_SIDED);
	static uint8_t written[BYTES], read[BYTES];
	struct contract *c = contract_open(&(struct contract_options){.flags = ZEROD_GROUP_DURABLE});
	zerod_client *first = c->ranks[0].client, *second = c->ranks[1].client;
	zerod_allocation *buffer;
	void *data;

	(void)state;
	for (uint32_t i = 0; i < BYTES; i++)
		written[i] = (uint8_t)(i * 7 + 1);
	OK(first, keep(first, BYTES, &buffer, &data));
	contract_read(NULL, read, data, BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		CHECK(read[i] == 0);
	contract_write(NULL, data, written, BYTES);
	FAILS(second, keep(second, BYTES, &buffer, &data), ZEROD_E_EXISTS,
	      "allocation 'adam' of job 'contract' on device 0 is held by session");
	contract_leave(&c->ranks[0]);
	AWAIT(keep(second, BYTES, &buffer, &data) == 0);
	contract_read(NULL, read, data, BYTES);
	for (uint32_t i = 0; i < BYTES; i++)
		CHECK_BYTES(read[i] == written[i]);
	OK(second, zerod_free(buffer, NULL, 0));
	AWAIT(contract_device(c, 0).allocation_bytes == 0);
	OK(second, keep(second, 2 * BYTES, &buffer, &data)); /* another one */
	OK(second, zerod_free(buffer, NULL, 0));
	contract_close(c);
}

static void test_size_that_differs(void **state)
{
	contract_needs(CONTRACT_ONE_SIDED);
	struct contract *c = contract_open(&(struct contract_options){.flags = ZEROD_GROUP_DURABLE});
	zerod_client *first = c->ranks[0].client, *second = c->ranks[1].client;
	zerod_allocation *buffer;
	void *data;

	(void)state;
	OK(first, keep(first, BYTES, &buffer, &data));
	contract_leave(&c->ranks[0]);
	AWAIT(keep(second, 2 * BYTES, &buffer, &data) == ZEROD_E_MISMATCH);
	FAILS(second, keep(second, 2 * BYTES, &buffer, &data), ZEROD_E_MISMATCH,
	      "has 5120 bytes; 10000 are asked for");
	OK(second, keep(second, BYTES, &buffer, &data));
	OK(second, zerod_free(buffer, NULL, 0));
	contract_close(c);
}

static void test_job_that_is_not_durable(void **state)
{
	struct contract *c = contract_open(NULL);
	zerod_client *client = c->ranks[0].client;
	zerod_allocation *buffer;
	void *data;

	(void)state;
	FAILS(client, keep(client, BYTES, &buffer, &data), ZEROD_E_STATE, "is not durable");
	contract_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        CONTRACT_TEST(test_later_session_finds_the_bytes),
	        CONTRACT_TEST(test_size_that_differs),
	        CONTRACT_TEST(test_job_that_is_not_durable),
	};

	return cmocka_run_group_tests_name("contract: durable allocations", tests, NULL, NULL);
}
