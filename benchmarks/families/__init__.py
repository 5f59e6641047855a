"""Is the memory of public model families on the simulated GPU that of a real one?"""
