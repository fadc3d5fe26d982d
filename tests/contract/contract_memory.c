/* SPDX-License-Identifier: Apache-2.0 */
/* contract_memory.c - units of known bytes. */
#include <stdio.h>

#include "base/mem.h"
#include "contract_internal.h"

/* ---- Units --------------------------------------------------------------------------------------------- */

/* No byte is 0, which is the padding's. */
static uint8_t pattern(const struct contract_unit *unit, uint64_t version, uint64_t i)
{
	uint32_t hash = 2166136261u;

	for (const char *name = unit->name; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 16777619u;
	hash = (hash ^ (uint32_t)version) * 16777619u;
	hash = (hash ^ (uint32_t)i) * 16777619u;
	return (uint8_t)((hash >> 13) % 255 + 1);
}

typedef int register_fn(zerod_group *group, const struct zerod_unit_options *options, zerod_unit **unit);

int contract_register(zerod_group *group, const struct zerod_unit_options *options, zerod_unit **unit)
{
	struct zerod_unit_options placed = *options;

	if (contract_on_host())
		placed.flags |= ZEROD_UNIT_ON_HOST;
	return zerod_unit_register(group, &placed, unit);
}

static void register_all(struct contract *c, const struct zerod_unit_options *options,
                         register_fn *register_one, struct contract_unit *unit)
{
	*unit = (struct contract_unit){.numel = options->numel,
	                               .element_bytes = zerod_dtype_bytes(options->dtype)};
	(void)snprintf(unit->name, sizeof(unit->name), "%s", options->name);
	for (uint32_t i = 0; i < c->world_size; i++) {
		struct contract_rank *rank = &c->ranks[i];
		struct zerod_shard shard = ZEROD_INIT(shard);

		OK(rank->client, register_one(rank->group, options, &unit->at[i]));
		OK(rank->client, zerod_shard_get(unit->at[i], &shard));
		unit->shard_numel = shard.shard_numel;
		unit->padded_numel = shard.padded_numel;
		unit->version[i] = shard.version;
	}
}

void contract_unit(struct contract *c, const struct zerod_unit_options *options, struct contract_unit *unit)
{
	register_all(c, options, contract_register, unit);
}

void contract_unit_of(struct contract *c, const char *name, enum zerod_dtype dtype, uint64_t numel,
                      struct contract_unit *unit)
{
	struct zerod_unit_options options = ZEROD_INIT(options);

	options.name = name;
	options.dtype = dtype;
	options.numel = numel;
	contract_unit(c, &options, unit);
}

void contract_plain_unit(struct contract *c, const char *name, uint64_t numel, struct contract_unit *unit)
{
	contract_unit_of(c, name, ZEROD_FLOAT32, numel, unit);
}

void contract_slot_unit(struct contract *c, const char *name, uint64_t numel, uint32_t slot,
                        struct contract_unit *unit)
{
	struct zerod_unit_options options = ZEROD_INIT(options);

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = numel;
	options.slot = slot;
	contract_unit(c, &options, unit);
	contract_publish_all(c, unit);
}

void contract_device_unit(struct contract *c, const char *name, uint64_t numel, struct contract_unit *unit)
{
	struct zerod_unit_options options = ZEROD_INIT(options);

	options.name = name;
	options.dtype = ZEROD_FLOAT32;
	options.numel = numel;
	register_all(c, &options, zerod_unit_register, unit);
}

void contract_write_shard(struct contract_rank *rank, struct contract_unit *unit, zerod_stream *stream)
{
	struct zerod_shard shard = ZEROD_INIT(shard);
	uint64_t bytes, first;
	uint8_t *content;

	OK(rank->client, zerod_shard_get(unit->at[rank->number], &shard));
	bytes = shard.true_numel * unit->element_bytes;
	first = shard.offset_numel * unit->element_bytes;
	content = zd_calloc(1, bytes + 1);
	for (uint64_t i = 0; i < bytes; i++)
		content[i] = pattern(unit, shard.version + 1, first + i);
	contract_write(stream, shard.data, content, bytes);
	free(content);
}

void contract_publish(struct contract_rank *rank, struct contract_unit *unit)
{
	zerod_unit *handle = unit->at[rank->number];

	OK(rank->client, zerod_update_begin(&handle, 1, NULL, NULL));
	contract_write_shard(rank, unit, NULL);
	OK(rank->client, zerod_publish(&handle, 1, NULL, 0, NULL, NULL));
	unit->version[rank->number]++;
}

void contract_publish_all(struct contract *c, struct contract_unit *unit)
{
	for (uint32_t i = 0; i < c->world_size; i++)
		contract_publish(&c->ranks[i], unit);
}

uint64_t contract_padded_bytes(const struct contract_unit *unit)
{
	return unit->padded_numel * unit->element_bytes;
}

bool contract_bytes_are(const struct contract_unit *unit, const uint8_t *bytes, uint64_t version)
{
	uint64_t real = unit->numel * unit->element_bytes;

	for (uint64_t i = 0; i < contract_padded_bytes(unit); i++)
		if (bytes[i] != (i < real ? pattern(unit, version, i) : 0))
			return false;
	return true;
}

void contract_expect_bytes(const struct contract_unit *unit, const void *data, uint64_t version)
{
	uint8_t *bytes = zd_calloc(1, contract_padded_bytes(unit));
	bool same;

	contract_read(NULL, bytes, data, contract_padded_bytes(unit));
	same = contract_bytes_are(unit, bytes, version);
	free(bytes);
	CHECK_BYTES(same);
}

void contract_others_gather(struct contract_rank *rank, struct contract_unit *unit, const char *tag)
{
	struct zerod_gather_options options = ZEROD_INIT(options);

	options.tag = tag;
	for (uint32_t i = 0; contract_gathers_together() && i < rank->world->world_size; i++)
		if (i != rank->number)
			OK(rank->world->ranks[i].client,
			   zerod_gather_begin(unit->at[i], &options, &unit->others[i]));
}

void contract_others_release(struct contract_rank *rank, struct contract_unit *unit, const char *tag)
{
	for (uint32_t i = 0; contract_gathers_together() && i < rank->world->world_size; i++) {
		zerod_client *client = rank->world->ranks[i].client;

		if (i == rank->number)
			continue;
		OK(client, zerod_wait(client, unit->others[i], NULL, NULL));
		OK(client, zerod_release(unit->at[i], NULL, 0, TAGGED(tag), NULL));
	}
}

void *contract_gather(struct contract_rank *rank, struct contract_unit *unit, const char *tag)
{
	struct zerod_gather_options options = ZEROD_INIT(options);
	void *data = NULL;

	options.tag = tag;
	if (!contract_in_task())
		contract_others_gather(rank, unit, tag);
	OK(rank->client, zerod_gather(unit->at[rank->number], &options, NULL, &data));
	return data;
}

void contract_release(struct contract_rank *rank, struct contract_unit *unit, const char *tag)
{
	if (!contract_in_task())
		contract_others_release(rank, unit, tag);
	OK(rank->client, zerod_release(unit->at[rank->number], NULL, 0, TAGGED(tag), NULL));
}

void contract_set_persistent(struct contract *c, struct contract_unit *unit, int persistent)
{
	for (uint32_t i = 0; i < c->world_size; i++)
		OK(c->ranks[i].client, zerod_unit_set_persistent(unit->at[i], persistent));
}

void contract_expect_version(struct contract_rank *rank, struct contract_unit *unit, uint64_t version)
{
	contract_expect_bytes(unit, contract_gather(rank, unit, NULL), version);
	contract_release(rank, unit, NULL);
}
