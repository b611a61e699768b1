"""For those who type `nox`: the same as the scripts in tools/, which make their own environments.

nox                       the tests on every Python 3.10 to 3.13 that is installed
nox -s tests -- --fast    arguments go to the script
nox -s docs package       the site of the documentation; what is released
"""

from __future__ import annotations

import nox

nox.options.sessions = ["tests"]


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """./tools/test --matrix"""
    session.run("./tools/test", "--matrix", *session.posargs, external=True)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """./tools/docs"""
    session.run("./tools/docs", *session.posargs, external=True)


@nox.session(venv_backend="none")
def package(session: nox.Session) -> None:
    """./tools/package"""
    session.run("./tools/package", *session.posargs, external=True)
