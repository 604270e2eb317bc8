"""Code that runs in processes of its own, how much memory there is for it, and what must not outlive this one."""
