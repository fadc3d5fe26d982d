/* SPDX-License-Identifier: Apache-2.0 */
/* contract_ranks.c - where the ranks of a test are: in how many daemons, on which devices, and how bytes
 * travel between them. */
#include <stdio.h>

#include "contract_internal.h"

static bool by_nccl(void)
{
	const char *given = getenv("ZEROD_TEST_COLLECTIVES");

	return given && strcmp(given, "nccl") == 0;
}

bool contract_on_host(void)
{
	const char *given = getenv("ZEROD_TEST_PLACEMENT");

	return given && strcmp(given, "host") == 0;
}

static uint32_t daemons_wanted(void)
{
	const char *given = getenv("ZEROD_TEST_DAEMONS");

	return given && strcmp(given, "2") == 0 ? 2 : 1;
}

bool contract_gathers_together(void)
{
	return by_nccl() || daemons_wanted() > 1;
}

__attribute__((format(printf, 1, 2))) static void skip_because(const char *format, ...)
{
	char words[CONTRACT_TEXT];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(words, sizeof(words), format, args);
	va_end(args);
	print_message("skipped: %s\n", words);
	skip();
}

void contract_needs(enum contract_need need)
{
	bool spans = daemons_wanted() > 1;

	if (need == CONTRACT_ONE_SIDED && contract_gathers_together())
		skip_because("ranks here gather and reduce together, in one order");
	else if (need == CONTRACT_ONE_DAEMON && spans)
		skip_because("no daemon here knows of all ranks");
	else if (need == CONTRACT_UNITS_ON_HOST && !contract_on_host())
		skip_because("this daemon has no host memory for units");
	else if (need == CONTRACT_TWO_DAEMONS && !spans)
		skip_because("all ranks are in one daemon");
}

/* ---- Places -------------------------------------------------------------------------------------------- */

void contract_place(struct contract *c, uint32_t devices)
{
	uint32_t least = by_nccl() ? c->world_size : daemons_wanted(); /* NCCL wants a GPU for each rank */

	c->daemons = daemons_wanted();
	if (c->world_size % c->daemons != 0)
		skip_because("%u ranks cannot be halved", c->world_size);
	c->devices = contract_backend()->begin(devices > least ? devices : least);
	if (c->devices < least)
		skip_because("%u devices are too few", c->devices);
	c->devices -= c->devices % c->daemons;
}

uint32_t contract_daemon_of(const struct contract_rank *rank)
{
	return rank->number / (rank->world->world_size / rank->world->daemons);
}

uint32_t contract_device_of(const struct contract_rank *rank)
{
	const struct contract *c = rank->world;

	return rank->number % (c->world_size / c->daemons) % (c->devices / c->daemons);
}

uint32_t contract_memory_of(const struct contract_rank *rank)
{
	struct zerod_device_info info = ZEROD_INIT(info);

	if (!contract_on_host())
		return contract_device_of(rank);
	OK(rank->client, zerod_device_get(rank->client, contract_device_of(rank), &info));
	return info.host;
}

void contract_gpus_of(const struct contract *c, uint32_t daemon, char list[CONTRACT_TEXT])
{
	uint32_t count = c->devices / c->daemons;
	size_t used = 0;

	for (uint32_t i = 0; i < count; i++)
		used += (size_t)snprintf(list + used, CONTRACT_TEXT - used, "%s%u", i > 0 ? "," : "",
		                         daemon * count + i);
}

void contract_config(const char *lines, char config[CONTRACT_CONFIG])
{
	(void)snprintf(config, CONTRACT_CONFIG, "%s[collectives]\ntimeout_s = 20\ncheck = %s\n%s",
	               contract_on_host() ? "[devices]\nhost_arena = 64M\n" : "", by_nccl() ? "yes" : "no",
	               lines ? lines : "");
}

void contract_join_options(const struct contract_rank *rank, const struct zerod_unique_id *id,
                           struct zerod_group_options *options)
{
	const struct contract *c = rank->world;

	options->world_size = c->world_size;
	options->rank = rank->number;
	options->device = contract_device_of(rank);
	options->local_world_size = c->world_size / c->daemons;
	options->unique_id = c->daemons > 1 ? id : NULL;
	options->collectives = by_nccl() ? ZEROD_COLLECTIVES_NCCL : ZEROD_COLLECTIVES_COPIES;
}
