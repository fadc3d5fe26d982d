/* SPDX-License-Identifier: Apache-2.0 */
/* sockets.c - the sockets on which the daemon listens. */
#include "main/sockets.h"

#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "main/activation.h"

static int bind_one(const struct zd_config *config, unsigned index, struct zd_bound *bound,
                    struct zd_err *err)
{
	const struct zd_config_socket *at = &config->sockets[index - (index > 0)];

	if (index == 0)
		return zd_bind(config->socket_path, config->socket_mode, bound, err);
	return zd_bind_for(at->path, at->mode, at->owner, at->group, bound, err);
}

static void init_one(struct zd_served_socket *served, const struct zd_config_socket *at)
{
	served->at = (struct zd_api_socket){.name = at->name,
	                                    .has_tenant = at->has_tenant,
	                                    .tenant_uid = at->tenant_uid,
	                                    .has_devices = at->has_devices,
	                                    .devices = at->devices};
}

int zd_sockets_open(struct zd_sockets *sockets, const struct zd_config *config, struct zd_err *err)
{
	struct zd_bound passed[1 + ZD_CONFIG_SOCKETS];
	int rc = zd_activation_adopt(config, passed, err);

	*sockets = (struct zd_sockets){.count = 0};
	while (rc == 0 && sockets->count < 1 + config->nsockets) {
		unsigned i = sockets->count;
		struct zd_served_socket *served = &sockets->all[i];

		served->bound = passed[i];
		served->activated = passed[i].sock >= 0;
		if (!served->activated)
			rc = bind_one(config, i, &served->bound, err);
		if (i > 0)
			init_one(served, &config->sockets[i - 1]);
		sockets->count += rc == 0;
	}
	if (rc)
		zd_sockets_close(sockets);
	return rc;
}

int zd_sockets_listen(struct zd_sockets *sockets, struct zd_loop *loop, struct zd_api *api,
                      struct zd_err *err)
{
	for (unsigned i = 0; i < sockets->count; i++) {
		struct zd_served_socket *served = &sockets->all[i];

		served->at.api = api;
		int rc = i == 0 ? zd_listener_open(&served->listener, loop, served->bound.sock, zd_api_accept,
		                                   api, err)
		                : zd_listener_open(&served->listener, loop, served->bound.sock,
		                                   zd_api_accept_at, &served->at, err);
		if (rc)
			return rc;
		served->listening = true;
		if (i > 0)
			zd_log(ZD_LOG_NOTICE, "socket '%s' at %s%s", served->at.name,
			       served->bound.address.sun_path, served->at.has_tenant ? ", of a tenant" : "");
	}
	return 0;
}

void zd_sockets_stop(struct zd_sockets *sockets)
{
	for (unsigned i = 0; i < sockets->count; i++) {
		if (sockets->all[i].listening)
			zd_listener_close(&sockets->all[i].listener);
		sockets->all[i].listening = false;
	}
}

void zd_sockets_close(struct zd_sockets *sockets)
{
	for (unsigned i = 0; i < sockets->count; i++) {
		if (sockets->all[i].activated)
			continue;
		zd_bound_unlink(&sockets->all[i].bound);
		(void)close(sockets->all[i].bound.sock);
	}
	sockets->count = 0;
}

const char *zd_sockets_path(const struct zd_sockets *sockets)
{
	return sockets->all[0].bound.address.sun_path;
}
