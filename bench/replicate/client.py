"""One client: writes values of SIZE bytes for SECONDS, each under a name of its own, and prints how
long each took: `client.py etcd HOST SIZE SECONDS NAME`, or
`client.py replicate DIR SIZE SECONDS NAME`."""

import base64
import http.client
import json
import os
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{TOP}/bindings/python")


def etcd(host):
    connection = http.client.HTTPConnection(host, 2379)

    def put(name, value):
        word = lambda text: base64.b64encode(text).decode()  # noqa: E731
        body = json.dumps({"key": word(name.encode()), "value": word(value)})
        connection.request("POST", "/v3/kv/put", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 200, said
    return put


def replicate(tree):
    import systx

    def put(name, value):
        def write():
            with open(f"{tree}/{name}", "wb") as file:
                file.write(value)
        systx.atomic(tree)(write)()
    return put


def main():
    what, where, size, seconds, name = sys.argv[1:]
    put = {"etcd": etcd, "replicate": replicate}[what](where)
    value, took = os.urandom(int(size)), []
    put(f"{name}-first", value)
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + float(seconds)
    while (begun := time.monotonic()) < end:
        put(f"{name}-{len(took)}", value)
        took.append(time.monotonic() - begun)
    print(json.dumps(took))


main()
