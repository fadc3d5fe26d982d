/* SPDX-License-Identifier: Apache-2.0 */
/* test_metrics.c - the reply to `metrics`: its form, its size, and what it does not say. */
#include "api_scene.h"

#define VARINT_BYTES 10u /* of the largest number */

/* The caller frees the delivery. */
static struct delivery ask(struct scene *scene, int sock)
{
	struct delivery delivery;

	delivery = scene_call(scene, sock, RAW(METRICS, metrics, Metrics));
	assert_int_equal(delivery.packet->replies[0]->status, 0);
	assert_non_null(delivery.packet->replies[0]->metrics);
	return delivery;
}

static const Zd__Metric *find(const Zd__MetricsReply *reply, const char *name)
{
	for (size_t i = 0; i < reply->n_metrics; i++) {
		if (strcmp(reply->metrics[i]->name, name) == 0)
			return reply->metrics[i];
	}
	fail_msg("there is no '%s'", name);
	return NULL;
}

SCENE_TEST(test_form)
{
	struct delivery delivery = ask(scene, scene->witness);
	const Zd__MetricsReply *reply = delivery.packet->replies[0]->metrics;

	for (size_t i = 0; i < reply->n_metrics; i++) {
		const Zd__Metric *metric = reply->metrics[i];
		size_t ncounts = metric->type == ZD__METRIC_TYPE__HISTOGRAM ? metric->n_bounds + 1 : 0;

		assert_true(metric->n_samples > 0 && metric->help[0] && metric->parts > 0);
		assert_int_equal(find(reply, metric->name) == metric, true); /* no other has its name */
		for (size_t k = 0; k < metric->n_samples; k++) {
			assert_int_equal(metric->samples[k]->n_labels, metric->n_labels);
			assert_int_equal(metric->samples[k]->n_counts, ncounts);
			for (size_t l = 0; l < metric->n_labels; l++)
				assert_true(metric->samples[k]->labels[l][0] != '\0');
		}
	}
	assert_int_equal(find(reply, "sessions")->samples[0]->value, 1);
	assert_int_equal(find(reply, "arena")->n_samples, 2);
	assert_int_equal(find(reply, "arena")->samples[1]->value, 64 << 20);
	delivery_free(&delivery);
}

/* Requests that never get to the engine are counted, too. */
SCENE_TEST(test_rejected_requests)
{
	Zd__Request request = ZD__REQUEST__INIT;
	struct delivery delivery;

	assert_int_equal(scene_status(scene, scene->witness, &request), ZEROD_E_UNSUPPORTED);
	delivery = ask(scene, scene->witness);
	assert_int_equal(find(delivery.packet->replies[0]->metrics, "rejected_requests")->samples[0]->value,
	                 1);
	delivery_free(&delivery);
}

/* With all the devices that a daemon may have, and the largest numbers, it is one packet. */
TEST(test_size)
{
	void *fixture = calloc(1, sizeof(struct scene));
	struct scene *scene = fixture;
	struct zd_bridge_config config = {
	        .backend = &zd_backend_host, .ndevices = ZD_MAX_DEVICES, .arena_bytes = 1 << 20};
	struct zd_api_limits limits = default_limits();
	struct delivery delivery;
	struct zd_err err;
	size_t nbytes;

	assert_non_null(scene);
	assert_int_equal(zd_loop_init(&scene->loop, &err), 0);
	assert_int_equal(zd_api_open(&scene->api, &scene->loop, &config, &limits, &err), 0);
	scene->witness = scene_session(scene);
	delivery = ask(scene, scene->witness);
	nbytes = delivery.nbytes;
	for (size_t i = 0; i < delivery.packet->replies[0]->metrics->n_metrics; i++) {
		const Zd__Metric *metric = delivery.packet->replies[0]->metrics->metrics[i];

		for (size_t k = 0; k < metric->n_samples; k++)
			nbytes += VARINT_BYTES * (1 + metric->samples[k]->n_counts);
	}
	print_message("at most %zu bytes\n", nbytes);
	assert_true(nbytes <= ZD_MAX_PACKET_BYTES);
	delivery_free(&delivery);
	(void)scene_teardown(&fixture);
}
