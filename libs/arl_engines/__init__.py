"""Engines that start and stop nodes, and the controller that scales pools of nodes by the backlog."""
