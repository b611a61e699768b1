"""Benchmarks of shmpipe beside its peers: ``python -m bench`` from the checkout.

Every figure comes from real processes, and everything that is compared was measured in the same
run, in turns: noise of the machine hits all alike.
"""
