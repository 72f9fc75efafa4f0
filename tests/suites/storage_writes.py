"""Random writes of 4 KiB on an NBD export, 32 under way, and a flush behind each 64. Prints what was done, as JSON.

fio issues a flush for each free place of its queue instead.
"""

import json
import os
import random
import sys
import time

import nbd

SIZE = 4096
DEPTH = 32
EACH = 64

uri, seconds = sys.argv[1], float(sys.argv[2])
handle = nbd.NBD()
handle.connect_uri(uri)
blocks = handle.get_size() // SIZE
# Data that does not compress.
buffers = [nbd.Buffer.from_bytearray(bytearray(os.urandom(SIZE))) for _ in range(64)]
chance = random.Random(1)
errors = []


def done(error):
    if error.value != 0:
        errors.append(error.value)
    return 1


writes = flushes = 0
begun = time.monotonic()
while time.monotonic() < begun + seconds and not errors:
    while handle.aio_in_flight() < DEPTH:
        handle.aio_pwrite(buffers[writes % 64], chance.randrange(blocks) * SIZE, completion=done)
        writes += 1
        if writes % EACH == 0:
            handle.aio_flush(completion=done)
            flushes += 1
    handle.poll(-1)
while handle.aio_in_flight() > 0:
    handle.poll(-1)
taken = time.monotonic() - begun
if errors:
    sys.exit(f"errors {sorted(set(errors))}")
print(json.dumps({"bytes": writes * SIZE, "flushes": flushes, "seconds": taken}))
