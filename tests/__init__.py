"""Tests of shmpipe: a package, so that helpers and child processes find its modules by name."""
