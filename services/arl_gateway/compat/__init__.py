"""Protocols that trainers speak already, each as its clients send and parse it. All lead to `arl_gateway.reward_services.score_coalescer`."""
