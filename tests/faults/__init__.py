"""Faults caused for real to tiny commands: nothing is lost, nothing measured twice,
nothing left running.
"""
