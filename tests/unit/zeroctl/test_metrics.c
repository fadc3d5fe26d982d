/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text and HTTP of `zeroctl metrics`, from families that a daemon might send.
 */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zerod.h>

#include "client/zeroctl/metrics.h"
#include "tests/support/test.h"

static Zd__MetricsReply reply = ZD__METRICS_REPLY__INIT;
static Zd__Metric metric;
static Zd__Sample sample;
static char *labels[2], *values[2];
static uint64_t bounds[2], counts[3];

/* One family of one sample. */
static void reset(void)
{
	static Zd__Metric *metrics[] = {&metric};
	static Zd__Sample *samples[] = {&sample};
	metric = (Zd__Metric)ZD__METRIC__INIT;
	sample = (Zd__Sample)ZD__SAMPLE__INIT;
	metric.name = (char *)"thing";
	metric.help = (char *)"Things";
	metric.type = ZD__METRIC_TYPE__GAUGE;
	metric.parts = 1;
	metric.samples = samples;
	metric.n_samples = 1;
	metric.labels = labels;
	metric.bounds = bounds;
	sample.labels = values;
	sample.counts = counts;
	reply.metrics = metrics;
	reply.n_metrics = 1;
}

static int setup(void **state)
{
	(void)state;
	reset();
	return 0;
}

#define SETUP_TEST(name) TEST_DEFINE(name, void, , name(), setup, NULL)

static void expect(enum zd_ctl_metrics_format format, const char *text)
{
	char *printed = NULL;
	size_t nbytes = 0;
	FILE *file = open_memstream(&printed, &nbytes);
	assert_int_equal(zd_ctl_metrics_print(file, format, &reply), 0);
	assert_int_equal(fclose(file), 0);
	assert_string_equal(printed, text);
	free(printed);
}

static void expect_text(const char *text)
{
	expect(ZD_CTL_OPENMETRICS, text);
}

static void expect_rejected(void)
{
	FILE *file = fopen("/dev/null", "w");
	assert_non_null(file);
	assert_int_equal(zd_ctl_metrics_print(file, ZD_CTL_OPENMETRICS, &reply), ZEROD_E_PROTOCOL);
	assert_int_equal(fclose(file), 0);
}

/* ---- Text ---------------------------------------------------------------------------------------------- */

SETUP_TEST(test_a_gauge)
{
	sample.value = UINT64_MAX;
	expect_text("# TYPE zerod_thing gauge\n# HELP zerod_thing Things\n"
	            "zerod_thing 18446744073709551615\n# EOF\n");
}

SETUP_TEST(test_a_counter_of_seconds)
{
	metric.type = ZD__METRIC_TYPE__COUNTER;
	metric.unit = (char *)"seconds";
	metric.parts = 1000000000;
	sample.value = 12000000340;
	expect_text("# TYPE zerod_thing_seconds counter\n# UNIT zerod_thing_seconds seconds\n"
	            "# HELP zerod_thing_seconds Things\nzerod_thing_seconds_total 12.00000034\n# EOF\n");
	sample.value = 3000000000;
	expect_text("# TYPE zerod_thing_seconds counter\n# UNIT zerod_thing_seconds seconds\n"
	            "# HELP zerod_thing_seconds Things\nzerod_thing_seconds_total 3\n# EOF\n");
}

SETUP_TEST(test_labels_and_help_are_escaped)
{
	metric.help = (char *)"a \\ b\nc \"d\"";
	metric.n_labels = sample.n_labels = 2;
	labels[0] = (char *)"device";
	labels[1] = (char *)"purpose";
	values[0] = (char *)"0";
	values[1] = (char *)"x\"} 5\n\\";
	expect_text("# TYPE zerod_thing gauge\n# HELP zerod_thing a \\\\ b\\nc \\\"d\\\"\n"
	            "zerod_thing{device=\"0\",purpose=\"x\\\"} 5\\n\\\\\"} 0\n# EOF\n");
}

SETUP_TEST(test_buckets_add_up)
{
	metric.type = ZD__METRIC_TYPE__HISTOGRAM;
	metric.unit = (char *)"seconds";
	metric.parts = 1000000000;
	metric.n_bounds = 2;
	bounds[0] = 10000;
	bounds[1] = 2000000000;
	sample.n_counts = 3;
	counts[0] = 1;
	counts[1] = 0;
	counts[2] = 4;
	sample.value = 41000000000;
	expect_text("# TYPE zerod_thing_seconds histogram\n# UNIT zerod_thing_seconds seconds\n"
	            "# HELP zerod_thing_seconds Things\n"
	            "zerod_thing_seconds_bucket{le=\"1e-05\"} 1\nzerod_thing_seconds_bucket{le=\"2.0\"} 1\n"
	            "zerod_thing_seconds_bucket{le=\"+Inf\"} 5\nzerod_thing_seconds_count 5\n"
	            "zerod_thing_seconds_sum 41\n# EOF\n");
}

SETUP_TEST(test_a_later_daemons_type_is_unknown)
{
	metric.type = (Zd__MetricType)9;
	expect_text("# TYPE zerod_thing unknown\n# HELP zerod_thing Things\nzerod_thing 0\n# EOF\n");
}

/* A counter is called as its samples are, and quotes of a help text are no escapes. */
SETUP_TEST(test_the_older_format)
{
	metric.type = ZD__METRIC_TYPE__COUNTER;
	metric.unit = (char *)"seconds";
	metric.help = (char *)"a \\ \"b\"";
	expect(ZD_CTL_PROMETHEUS,
	       "# TYPE zerod_thing_seconds_total counter\n"
	       "# HELP zerod_thing_seconds_total a \\\\ \"b\"\nzerod_thing_seconds_total 0\n");
	reset();
	metric.type = ZD__METRIC_TYPE__INFO;
	expect(ZD_CTL_PROMETHEUS,
	       "# TYPE zerod_thing_info gauge\n# HELP zerod_thing_info Things\nzerod_thing_info 0\n");
	metric.type = (Zd__MetricType)9;
	expect(ZD_CTL_PROMETHEUS, "# TYPE zerod_thing untyped\n# HELP zerod_thing Things\nzerod_thing 0\n");
}

SETUP_TEST(test_what_makes_no_sense_is_rejected)
{
	metric.parts = 0;
	expect_rejected();
	reset();
	metric.name = (char *)"a b";
	expect_rejected();
	metric.name = (char *)"7a";
	expect_rejected();
	metric.name = (char *)"";
	expect_rejected();
	reset();
	metric.unit = (char *)"s\n";
	expect_rejected();
	reset();
	metric.n_labels = 1;
	labels[0] = (char *)"device";
	expect_rejected(); /* the sample has no value for it */
	sample.n_labels = 1;
	values[0] = (char *)"0";
	labels[0] = (char *)"de vice";
	expect_rejected();
	reset();
	metric.type = ZD__METRIC_TYPE__HISTOGRAM;
	metric.n_bounds = 2;
	sample.n_counts = 2;
	expect_rejected();
}

/* ---- HTTP ---------------------------------------------------------------------------------------------- */

TEST(test_statuses)
{
	static const struct {
		const char *request;
		int status;
		bool head;
	} requests[] = {
	        {"GET /metrics HTTP/1.1\r\n\r\n", 200, false},
	        {"GET /metrics HTTP/1.0\r\nHost: a\r\n\r\n", 200, false},
	        {"GET /metrics?name=x HTTP/1.1\r\n\r\n", 200, false},
	        {"HEAD /metrics HTTP/1.1\r\n\r\n", 200, true},
	        {"GET / HTTP/1.1\r\n\r\n", 404, false},
	        {"GET /metrics/ HTTP/1.1\r\n\r\n", 404, false},
	        {"GET /metricsx HTTP/1.1\r\n\r\n", 404, false},
	        {"HEAD /x HTTP/1.1\r\n\r\n", 404, true},
	        {"POST /metrics HTTP/1.1\r\n\r\n", 405, false},
	        {"get /metrics HTTP/1.1\r\n\r\n", 405, false},
	        {"GET  /metrics HTTP/1.1\r\n\r\n", 400, false},
	        {"GET /metrics HTTP/2.0\r\n\r\n", 400, false},
	        {"GET /metrics HTTP/1.1 \r\n\r\n", 400, false},
	        {"GET /metrics\r\n\r\n", 400, false},
	        {" /metrics HTTP/1.1\r\n\r\n", 400, false},
	        {"GET /met\trics HTTP/1.1\r\n\r\n", 400, false},
	        {"\r\n\r\n", 400, false},
	        {"GET /metrics HTTP/1.1\r\nHost: a\r\n", 0, false},
	        {"", 0, false},
	};
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		bool head = false;
		assert_int_equal(zd_ctl_http_status(requests[i].request, strlen(requests[i].request), &head),
		                 requests[i].status);
		assert_int_equal(head, requests[i].head);
	}
}

/* Each beginning of a request waits for the rest. */
TEST(test_a_request_comes_in_parts)
{
	static const char request[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
	bool head;
	for (size_t nbytes = 0; nbytes < sizeof(request) - 1; nbytes++)
		assert_int_equal(zd_ctl_http_status(request, nbytes, &head), 0);
	assert_int_equal(zd_ctl_http_status(request, sizeof(request) - 1, &head), 200);
}

TEST(test_a_request_is_bounded)
{
	static char request[ZD_CTL_HTTP_MAX_BYTES];
	bool head = true;
	memset(request, 'a', sizeof(request));
	assert_int_equal(zd_ctl_http_status(request, sizeof(request) - 1, &head), 0);
	assert_int_equal(zd_ctl_http_status(request, sizeof(request), &head), 400);
	assert_false(head);
}

TEST(test_formats_are_chosen_by_weight)
{
	static const struct {
		const char *accept;
		enum zd_ctl_metrics_format format;
	} requests[] = {
	        {"", ZD_CTL_PROMETHEUS},
	        {"Accept: */*\r\n", ZD_CTL_PROMETHEUS},
	        {"accept:text/plain\r\n", ZD_CTL_PROMETHEUS},
	        {"Accept: application/openmetrics-text\r\n", ZD_CTL_OPENMETRICS},
	        /* The headers of Prometheus 2.50, by default and if it prefers the older format. */
	        {"Accept: application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;"
	         "version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n",
	         ZD_CTL_OPENMETRICS},
	        {"Host: a\r\nAccept: text/plain;version=0.0.4;q=0.6, application/openmetrics-text;q=0.5\r\n",
	         ZD_CTL_PROMETHEUS},
	        {"Accept: application/openmetrics-text;q=0\r\n", ZD_CTL_PROMETHEUS},
	};
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		char text[512];
		snprintf(text, sizeof(text), "GET /metrics HTTP/1.1\r\n%s\r\n", requests[i].accept);
		assert_int_equal(zd_ctl_http_format(text), requests[i].format);
	}
}

static int make_failing(FILE *body, enum zd_ctl_metrics_format format, void *arg)
{
	(void)format;
	(void)arg;
	fputs("half", body);
	return ZEROD_E_CONNECT;
}

static int make_three(FILE *body, enum zd_ctl_metrics_format format, void *arg)
{
	(void)format;
	(void)arg;
	fputs("a=1", body);
	return 0;
}

/* Sends the request over a socket, whose other end is served, and returns the whole answer in `text`. */
static void serve(const char *request, size_t nbytes, int (*make)(FILE *, enum zd_ctl_metrics_format, void *),
                  char text[512])
{
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(send(pair[0], request, nbytes, 0), nbytes);
	assert_int_equal(shutdown(pair[0], SHUT_WR), 0);
	assert_int_equal(zd_ctl_http_serve(pair[1], pair[1], make, NULL), 0);
	close(pair[1]);
	ssize_t got = recv(pair[0], text, 511, MSG_WAITALL);
	assert_true(got >= 0);
	text[got] = '\0';
	close(pair[0]);
}

#define SERVE(request, make, text) serve(request, sizeof(request) - 1, make, text)

#define OK_HEADERS "HTTP/1.1 200 OK\r\nVary: Accept\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8"

TEST(test_answers)
{
	char text[512];
	SERVE("GET /metrics HTTP/1.1\r\n\r\n", make_three, text);
	assert_string_equal(text, OK_HEADERS "\r\nContent-Length: 3\r\nConnection: close\r\n\r\na=1");
	SERVE("HEAD /metrics HTTP/1.1\r\n\r\n", make_three, text);
	assert_string_equal(text, OK_HEADERS "\r\nContent-Length: 3\r\nConnection: close\r\n\r\n");
	SERVE("GET /metrics HTTP/1.1\r\n\r\n", make_failing, text);
	assert_string_equal(text, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\n"
	                          "Content-Length: 19\r\nConnection: close\r\n\r\nService Unavailable");
	SERVE("PUT /metrics HTTP/1.1\r\n\r\n", make_three, text);
	assert_non_null(strstr(text, "405 Method Not Allowed\r\nAllow: GET, HEAD\r\n"));
	SERVE("GET /metrics HTT", make_three, text); /* the end comes too early */
	assert_non_null(strstr(text, "400 Bad Request\r\n"));
	SERVE("", make_three, text);
	assert_string_equal(text, "");
}

/* More than a request may have is read and dropped, so that the peer sees the answer. */
TEST(test_the_peer_of_a_large_request_gets_its_answer)
{
	static char request[3 * ZD_CTL_HTTP_MAX_BYTES];
	char text[512];
	memset(request, 'a', sizeof(request));
	serve(request, sizeof(request), make_three, text);
	assert_memory_equal(text, "HTTP/1.1 400", 12);
}

TEST(test_a_peer_that_has_gone_is_no_failure)
{
	int pair[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(send(pair[0], "GET /metrics HTTP/1.1\r\n\r\n", 25, 0), 25);
	close(pair[0]);
	assert_int_equal(zd_ctl_http_serve(pair[1], pair[1], make_three, NULL), 0);
	close(pair[1]);
}
