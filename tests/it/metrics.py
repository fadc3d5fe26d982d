#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what `zeroctl metrics` prints. The first argument chooses:

  text FILE [CLASSIC]        OpenMetrics, and the same in the older format, by prometheus_client's parsers; exit code 77 without these
  grown BEFORE AFTER SERIES=N...  between the files each series has grown by N, or with N+ by that at least; no counter has shrunk
  same A B                   both have the same series
  dashboard JSON FILE        the file has every metric that the dashboard queries, and the dashboard queries every metric
  http COMMAND...            answers of the command over TCP
  listener COMMAND...        answers of the command with a listening socket
"""
import http.client
import json
import re
import socket
import subprocess
import sys
import threading

SERIES = re.compile(r"^(zerod_\w+(?:\{[^}]*\})?) (\S+)$")


def series(path):
    """The values of all series by name and labels."""
    with open(path) as file:
        found = [SERIES.match(line) for line in file if not line.startswith("#")]
    assert all(found), "a line is neither a comment nor a sample"
    return {match[1]: float(match[2]) for match in found}


def families(path):
    with open(path) as file:
        return {line.split()[2]: line.split()[3] for line in file if line.startswith("# TYPE ")}


def check_histogram(family):
    """Of each set of labels: the buckets never decrease, the last one is the count, and sum and count agree."""
    groups = {}
    for sample in family.samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        groups.setdefault(labels, []).append(sample)
    for samples in groups.values():
        buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
        count = next(s.value for s in samples if s.name.endswith("_count"))
        total = next(s.value for s in samples if s.name.endswith("_sum"))
        assert buckets == sorted(buckets) and [v for _, v in buckets] == sorted(v for _, v in buckets), samples
        assert buckets[0][0] == 1e-5 and buckets[-1] == (float("inf"), count), samples
        least, bound_before, value_before, most = 0, 0, 0, 0
        for bound, value in buckets:
            least += bound_before * (value - value_before)
            most += bound * (value - value_before) if value > value_before else 0
            bound_before, value_before = bound, value
        assert least * (1 - 1e-9) <= total <= most * (1 + 1e-9), (least, total, most, samples)


def text(path, classic=None):
    try:
        from prometheus_client.openmetrics.parser import text_fd_to_metric_families
        from prometheus_client.parser import text_fd_to_metric_families as classic_families
    except ImportError:
        sys.exit(77)
    with open(path) as file:
        parsed = list(text_fd_to_metric_families(file))
    if classic:
        with open(classic) as file:
            found = {family.name: family for family in classic_families(file)}
        assert sorted(series(path)) == sorted(series(classic))
        for family in parsed:
            name, kind = (family.name + "_info", "gauge") if family.type == "info" else (family.name, family.type)
            assert (found[name].type, found[name].documentation) == (kind, family.documentation), family
    assert len(parsed) > 20, parsed
    for family in parsed:
        assert family.name.startswith("zerod_") and family.documentation, family
        assert family.unit in ("", "seconds", "bytes"), family
        if family.type == "histogram":
            check_histogram(family)


def grown(before, after, *expected):
    before, after = series(before), series(after)
    for name, value in before.items():
        if "_total" in name or "_bucket" in name or "_count" in name:
            assert after[name] >= value, f"{name} has shrunk from {value} to {after[name]}"
    for item in expected:
        name, least = item.rsplit("=", 1)
        growth = after[name] - before[name]
        right = growth >= float(least[:-1]) if least.endswith("+") else growth == float(least)
        assert right, f"{name} has grown by {growth}, not by {least}"


def same(a, b):
    assert sorted(series(a)) == sorted(series(b))


def dashboard(path, metrics):
    with open(path) as file:
        board = json.load(file)
    queries = [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]
    queries += [v["query"] for v in board["templating"]["list"]]
    assert len(queries) > 20
    queried = {name for query in queries for name in re.findall(r"\bzerod_\w+", query)}
    names = {name.split("{")[0] for name in series(metrics)}
    assert queried <= names, f"nobody has {queried - names}"
    shown = {re.sub(r"_(total|bucket|sum|count|info)$", "", name) for name in queried}
    assert shown == set(families(metrics)), f"no panel has {set(families(metrics)) - shown}"
    for query in queries:
        for name, value in re.findall(r'\b(purpose|outcome|status|kind|reason|cause)="(\w+)"', query):
            assert any(f'{name}="{value}"' in s for s in series(metrics)), query


def answer(command, send):
    """The command's answer to a connection; `send` is called with the client's socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    with client, peer:
        program = subprocess.Popen(command, stdin=peer, stdout=peer)
        peer.close()
        result = send(client)
    assert program.wait(60) == 0
    return result


def fetch(method, path, accept="application/openmetrics-text"):
    def send(client):
        connection = http.client.HTTPConnection("zerod")
        connection.sock = client
        connection.request(method, path, headers={"Accept": accept})
        response = connection.getresponse()
        return response, response.read().decode()
    return send


def raw(data):
    def send(client):
        def feed():
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the answer has come before the end
        feeder = threading.Thread(target=feed)
        feeder.start()
        answered = b""
        while chunk := client.recv(65536):
            answered += chunk
        feeder.join()
        return answered
    return send


def check_http(*command):
    response, body = answer(command, fetch("GET", "/metrics"))
    assert response.status == 200 and body.endswith("\n# EOF\n"), (response.status, body[-80:])
    assert response.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert int(response.headers["Content-Length"]) == len(body) and response.headers["Connection"] == "close"
    response, body = answer(command, fetch("GET", "/metrics", "*/*"))
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4") and "# EOF" not in body
    response, body = answer(command, fetch("HEAD", "/metrics"))
    assert response.status == 200 and int(response.headers["Content-Length"]) > 10000 and body == ""
    response, _ = answer(command, fetch("GET", "/"))
    assert response.status == 404
    response, _ = answer(command, fetch("POST", "/metrics"))
    assert response.status == 405 and response.headers["Allow"] == "GET, HEAD"
    assert answer(command, raw(b"what?\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert answer(command, raw(b"GET /metrics HTTP/1.1\r\nX: " + 100000 * b"x")).startswith(b"HTTP/1.1 400 ")
    assert answer(command, raw(b"")) == b""
    answer(command, lambda client: client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n"))  # gone before the answer


def check_listener(*command):
    """Connections that send nothing, more than there are places, keep nobody else from an answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        program = subprocess.Popen(command, stdin=server)
        silent = [socket.create_connection(server.getsockname()) for _ in range(200)]
        for _ in range(3):
            with socket.create_connection(server.getsockname(), timeout=60) as client:
                assert fetch("GET", "/metrics")(client)[0].status == 200
        assert silent[0].recv(1) == b"" and program.poll() is None
        silent[-1].sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert silent[-1].recv(12) == b"HTTP/1.1 404"
    program.kill()
    program.wait(60)
    for client in silent:
        client.close()


{"listener": check_listener, "text": text, "grown": grown, "same": same, "dashboard": dashboard, "http": check_http}[sys.argv[1]](*sys.argv[2:])
