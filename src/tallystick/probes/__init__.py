"""The five probes: attacks that try to win, beside controls that must.

Each way of an attack is tried against Tallystick and against `naive`, the payout service most people would write
first. An attack that wins against Tallystick is a hole; one that does not win against the naive one proves nothing.
"""
