"""Protocols of trainers and clients, parsed and answered as their clients expect.

Reward protocols use `arl_gateway.reward_services.score_coalescer`.
"""
