"""Runs code in other processes within limits, and makes sure that they and their files do not outlive this one.

Every process is a command that leads a session of its own (``process.Process``) or a fork. There are four kinds:

``process.run`` runs one command to its end: a check, or one of biopsy's modules for a single request.
``server.Server`` keeps one of biopsy's modules running, which answers requests one after the other.
``warm.ForkServer`` keeps a warm process, which makes a fork for each request from a ``warm.Connection``.
``supervised`` runs a task, or one call of native code, in a fork of this process.

All of them have ``watch.Limits`` of time and of memory (``own_process.taken_by_family``). Their output is kept up to a
bound, and their process groups are on the list of ``cleanup``, which ends them with this process, even if it is killed
by SIGKILL. The callers know what the requests mean.
"""
