"""Protocols of trainers and clients, each parsed and answered as its clients expect.

Reward protocols lead to `arl_gateway.reward_services.score_coalescer`.
"""
