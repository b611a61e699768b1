"""The compiled engine: which modules it is made of, and what happens where it cannot be built.

Everything else is in pyproject.toml.  Two switches, read from the environment:

SHMPIPE_PURE=1      do not compile: install the interpreted engine
SHMPIPE_NATIVE=1    a failure to compile is an error

Without either, a failure to compile leaves the interpreted engine, and says so.
"""

import os
import re
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MODULES = (
    "arguments",
    "arrivals",
    "assembling",
    "bytering",
    "collecting",
    "connection",
    "control",
    "deadlines",
    "descriptors",
    "doorbell",
    "ends",
    "filelock",
    "following",
    "frames",
    "halves",
    "identity",
    "keeping",
    "lending",
    "living",
    "locking",
    "messages",
    "objects",
    "pagering",
    "pipe",
    "places",
    "policies",
    "primitives",
    "readers",
    "receiving",
    "ring",
    "segment",
    "sending",
    "stepping",
    "stream",
    "waiting",
    "writers",
)
# An annotation means the same in both engines; what has a C type is in the .pxd files.
DIRECTIVES = {"language_level": 3, "annotation_typing": False}
# Where a call costs as much as what it does: methods like those of C, which the interpreter calls
# without a detour.  inspect.signature() finds what they take in their documentation.
AS_IN_C = {"binding": False, "embedsignature": True, "embedsignature.format": "clinic"}
CALLED_FOR_EACH_MESSAGE = ("connection",)


def switch(name):
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        sys.exit(f"{name}={value}: allowed are 0 and 1")
    return value == "1"


PURE, REQUIRED = switch("SHMPIPE_PURE"), switch("SHMPIPE_NATIVE")
if PURE and REQUIRED:
    sys.exit("SHMPIPE_PURE=1 and SHMPIPE_NATIVE=1 exclude each other")


def say(what):
    sys.stderr.write(f"\n*** shmpipe: {what}\n\n")


def description():
    """README.md for the page of a package index, where links into the checkout lead nowhere."""
    with open("README.md", encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"!\[([^]]*)\]\((?!https?:)([^)]*)\)", r"*\1: \2*", text)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def extensions():
    from Cython.Build import cythonize

    plain, as_in_c = [], []
    for module in MODULES:
        source = f"shmpipe/{module}.py"
        if module == "primitives":
            source += "x"
        extension = Extension(
            f"shmpipe.{module}",
            [source],
            extra_compile_args=["-O2", "-g0", "-fno-semantic-interposition"],
        )
        (as_in_c if module in CALLED_FOR_EACH_MESSAGE else plain).append(extension)
    return [
        compiled
        for some, more in ((plain, {}), (as_in_c, AS_IN_C))
        for compiled in cythonize(
            some, compiler_directives=DIRECTIVES | more, build_dir="build/cython", nthreads=0
        )
    ]


class build_all_or_nothing(build_ext):
    """Half of an engine is none: if one module fails, none is installed."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        try:
            super().run()
        except Exception as error:
            if REQUIRED:
                raise
            say(f"no compiled engine, because: {error}\n*** installing the interpreted one")
            self._remove_what_was_built()
            self.extensions.clear()

    def _remove_what_was_built(self):
        for extension in self.extensions:
            path = self.get_ext_fullpath(extension.name)
            if os.path.exists(path):
                os.remove(path)


def what_to_compile():
    if PURE:
        say("SHMPIPE_PURE=1: installing the interpreted engine")
        return []
    try:
        return extensions()
    except Exception as error:
        if REQUIRED:
            raise
        say(f"no compiled engine, because: {error}\n*** installing the interpreted one")
        return []


setup(
    ext_modules=what_to_compile(),
    cmdclass={"build_ext": build_all_or_nothing},
    long_description=description(),
    long_description_content_type="text/markdown",
)
