"""Benchmarks: each compares skdml with peers, in the same run and on the same inputs."""
