"""Runs tests of rdma-core's own suite and tells of each on one line.

Usage: rdma_core.py SUITE_DIR LIMIT_S NAMES_FILE [options of the suite, such as --dev]

SUITE_DIR holds the suite as the directory `tests`. Without names in NAMES_FILE the names of all tests
are printed, one "NAME x" each. Otherwise each named test is run: "START x" before it, and behind it
"RESULT {json}" with name, outcome and reason. A test that takes longer than LIMIT_S ends the run.
"""

import faulthandler
import json
import os
import sys
import unittest
from importlib.machinery import SourceFileLoader

suite_dir, limit_s, names_file = sys.argv[1:4]
# The suite parses the rest as its own arguments.
del sys.argv[1:4]
options = dict(zip(sys.argv, sys.argv[1:]))
sys.path[:0] = [suite_dir, os.path.join(suite_dir, "tests")]
from args_parser import parser  # noqa: E402

parser.parse_args()
# The suite's modules refer to each other in circles that only this way of loading them resolves.
tests = SourceFileLoader("tests", os.path.join(suite_dir, "tests", "__init__.py")).load_module()

# The suite asks `ip` for the address of the port's network device, which an emulated port does not have. The program runs on
# the first node. An address of the loopback interface would have no device: the suite needs one after it binds.
PORT_ADDRESS = "127.66.1." + options.get("--port", "1")
for module in [module for name, module in sys.modules.items() if name.endswith("base")]:
    if hasattr(module, "RDMATestCase"):
        module.RDMATestCase.get_ip_mac_address = staticmethod(lambda _: (PORT_ADDRESS, "00:00:00:00:00:00"))

# The suite prints on its own; lines of this file go to a copy of standard output, unbuffered.
out = os.fdopen(os.dup(1), "w", buffering=1)


class Teller(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        out.write(f"\nSTART {test.id()}\n")
        faulthandler.dump_traceback_later(float(limit_s), exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def tell(self, test, outcome, reason):
        line = json.dumps({"name": test.id(), "outcome": outcome, "reason": reason})
        out.write(f"\nRESULT {line}\n")

    def addSuccess(self, test):
        self.tell(test, "passed", "")

    def addFailure(self, test, error):
        self.tell(test, "failed", self._exc_info_to_string(error, test))

    addError = addFailure

    def addSkip(self, test, reason):
        self.tell(test, "skipped", reason)

    def addExpectedFailure(self, test, error):
        self.tell(test, "passed", "")

    def addUnexpectedSuccess(self, test):
        self.tell(test, "failed", "passed although it is marked to fail")

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.tell(test, "failed", self._exc_info_to_string(error, test))


def flat(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flat(item)
        else:
            yield item


loader = unittest.defaultTestLoader
every = {}
for module in tests.__test_modules__:
    for test in flat(loader.loadTestsFromModule(module)):
        every[test.id()] = test
with open(names_file) as file:
    names = file.read().split()
if names:
    chosen = unittest.TestSuite(every[name] for name in names)
    chosen.run(Teller())
else:
    for name in every:
        out.write(f"NAME {name}\n")
