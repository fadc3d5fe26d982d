/* SPDX-License-Identifier: Apache-2.0 */
/* test_device_uuid.c - devices that are joined by their names. */
#include "contract.h"

#include <stdio.h>

#define DEVICES 2u

struct names {
	char whole[DEVICES][64];
	size_t common; /* bytes with which both begin */
};

static bool has_devices(struct contract *c)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	return zerod_device_get(c->observers[0], DEVICES - 1, &info) == ZEROD_OK;
}

static void learn(struct contract *c, struct names *names)
{
	for (uint32_t device = 0; device < DEVICES; device++) {
		struct zerod_device_info info = ZEROD_INIT(info);

		OK(c->observers[0], zerod_device_get(c->observers[0], device, &info));
		(void)snprintf(names->whole[device], sizeof(names->whole[device]), "%s", info.name);
	}
	names->common = 0;
	while (names->whole[0][names->common] &&
	       names->whole[0][names->common] == names->whole[1][names->common])
		names->common++;
}

static struct zerod_group_options by(const char *uuid, uint32_t device)
{
	struct zerod_group_options options = ZEROD_INIT(options);

	options.job = "alone";
	options.world_size = 1;
	options.device_uuid = uuid;
	options.device = device;
	return options;
}

/* The shard of a group of one rank is on the device that was named. */
static void expect_device(struct contract *c, const char *uuid, uint32_t number, uint32_t device)
{
	struct zerod_group_options options = by(uuid, number);
	struct zerod_unit_options unit = ZEROD_INIT(unit);
	zerod_client *client = c->observers[0];
	zerod_group *group;
	zerod_unit *handle;

	unit.name = "w";
	unit.dtype = ZEROD_FLOAT32;
	unit.numel = 1;
	OK(client, zerod_group_join(client, &options, &group));
	OK(client, zerod_unit_register(group, &unit, &handle));
	for (uint32_t i = 0; i < DEVICES; i++)
		assert_int_equal(contract_device(c, i).shard_bytes != 0, i == device);
	OK(client, zerod_group_leave(group, NULL));
	AWAIT(contract_device(c, device).shard_bytes == 0);
}

static void expect_refusal(struct contract *c, const char *uuid, uint32_t number, int status,
                           const char *text)
{
	struct zerod_group_options options = by(uuid, number);
	zerod_group *group;

	FAILS(c->observers[0], zerod_group_join(c->observers[0], &options, &group), status, text);
}

CONTRACT_TEST(test_names_and_prefixes)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(&(struct contract_options){.devices = DEVICES});
	struct names names;
	char prefix[64];

	if (!has_devices(c)) { /* one GPU */
		contract_close(c);
		skip();
	}
	learn(c, &names);
	for (uint32_t device = 0; device < DEVICES; device++) {
		expect_device(c, names.whole[device], 0, device);
		expect_device(c, names.whole[device], device, device);
		(void)snprintf(prefix, sizeof(prefix), "%.*s", (int)names.common + 1, names.whole[device]);
		expect_device(c, prefix, 0, device);
	}
	expect_device(c, NULL, 1, 1);
	contract_close(c);
}

CONTRACT_TEST(test_refusals)
{
	contract_needs(CONTRACT_ONE_DAEMON);
	struct contract *c = contract_open(&(struct contract_options){.devices = DEVICES});
	struct names names;
	char text[256], common[64];

	if (!has_devices(c)) { /* one GPU */
		contract_close(c);
		skip();
	}
	learn(c, &names);
	(void)snprintf(text, sizeof(text), "'GPU-none'; its devices are %s, %s", names.whole[0],
	               names.whole[1]);
	expect_refusal(c, "GPU-none", 0, ZEROD_E_NOT_FOUND, text);
	(void)snprintf(text, sizeof(text), "%sx", names.whole[0]);
	expect_refusal(c, text, 0, ZEROD_E_NOT_FOUND, names.whole[0]);
	(void)snprintf(text, sizeof(text), "is ambiguous: %s, %s", names.whole[0], names.whole[1]);
	(void)snprintf(common, sizeof(common), "%.*s", (int)names.common, names.whole[0]);
	expect_refusal(c, common, 0, ZEROD_E_INVALID, text);
	expect_refusal(c, "", 0, ZEROD_E_INVALID, "device_uuid is empty");
	(void)snprintf(text, sizeof(text), "device is 1, and device_uuid '%s' is device 0", names.whole[0]);
	expect_refusal(c, names.whole[0], 1, ZEROD_E_INVALID, text);
	expect_refusal(c, "MIG-12345678-1234-1234-1234-123456789abc", 0, ZEROD_E_UNSUPPORTED,
	               "'MIG-12345678-1234-1234-1234-123456789abc' is a MIG instance");
	contract_close(c);
}
