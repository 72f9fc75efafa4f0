"""One side of a transfer by NIXL over UCX: the target registers memory, the initiator writes it and reads it back."""
import ctypes
import importlib
import os
import sys
import time
import types
from pathlib import Path

SIZE = 1 << 20
PART = 1 << 14
LIMIT_S = 100


def bindings(site):
    """The bindings alone: the package itself needs torch."""
    package = types.ModuleType("nixl_cu12")
    package.__path__ = [str(Path(site) / "nixl_cu12")]
    sys.modules["nixl_cu12"] = package
    return importlib.import_module("nixl_cu12._bindings")


def pattern(seed):
    return bytes((i * 7 + (i >> 8) + seed) & 0xFF for i in range(SIZE))


def wait(what, is_done):
    end = time.monotonic() + LIMIT_S
    while not is_done():
        if time.monotonic() > end:
            sys.exit(f"{what} takes more than {LIMIT_S} s")


class Side:
    def __init__(self, nixl, name):
        self.nixl = nixl
        config = nixl.nixlAgentConfig()
        config.useProgThread = True
        self.agent = nixl.nixlAgent(name, config)
        self.backend = self.agent.createBackend("UCX", {})

    def register(self, data):
        memory = ctypes.create_string_buffer(data, SIZE)
        # A constructor with a list needs numpy.
        places = self.nixl.nixlRegDList(self.nixl.DRAM_SEG)
        places.addDesc((ctypes.addressof(memory), SIZE, 0, b""))
        self.agent.registerMem(places, [self.backend])
        self.places = places
        return memory

    def close(self):
        self.agent.deregisterMem(self.places, [self.backend])
        del self.agent

    def parts(self, address):
        places = self.nixl.nixlXferDList(self.nixl.DRAM_SEG)
        for at in range(0, SIZE, PART):
            places.addDesc((address + at, PART, 0))
        return places

    def move(self, way, local, remote, peer, note):
        request = self.agent.createXferReq(way, self.parts(local), self.parts(remote), peer, note, [self.backend])
        state = self.agent.postXferReq(request, note)
        done = lambda: self.agent.getXferStatus(request) == self.nixl.NIXL_SUCCESS
        if state != self.nixl.NIXL_SUCCESS:
            wait("a transfer", done)
        self.agent.releaseXferReq(request)


def target(side, meet):
    memory = side.register(bytes(SIZE))
    text = side.agent.getLocalMD()
    (meet / "new").write_bytes(ctypes.addressof(memory).to_bytes(8, "little") + text)
    (meet / "new").rename(meet / "target")
    notes = {}

    def heard(note):
        nonlocal notes
        notes = side.agent.getNotifs(notes, [side.backend])
        return any(note in told for told in notes.values())

    wait("the write", lambda: heard(b"written"))
    if memory.raw != pattern(1):
        sys.exit("the written bytes are wrong")
    memory.raw = pattern(2)
    (meet / "changed").touch()
    wait("the read", lambda: heard(b"read"))


def initiator(side, meet):
    wait("the target", (meet / "target").exists)
    text = (meet / "target").read_bytes()
    remote = int.from_bytes(text[:8], "little")
    peer = side.agent.loadRemoteMD(text[8:])
    memory = side.register(pattern(1))
    local = ctypes.addressof(memory)
    side.move(side.nixl.NIXL_WRITE, local, remote, peer, b"written")
    wait("the target", (meet / "changed").exists)
    side.move(side.nixl.NIXL_READ, local, remote, peer, b"read")
    if memory.raw != pattern(2):
        sys.exit("the read bytes are wrong")
    print(f"{2 * SIZE} bytes verified")


def main():
    role, site, meet = sys.argv[1:]
    side = Side(bindings(site), role)
    {"target": target, "initiator": initiator}[role](side, Path(meet))
    side.close()
    sys.stdout.flush()
    # The libraries of the wheel fault when they are unloaded, also on TCP.
    os._exit(0)


main()
