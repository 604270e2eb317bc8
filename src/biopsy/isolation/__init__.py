"""Code that runs in processes of its own, and what must not outlive this one."""
