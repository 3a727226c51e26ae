

def _operator(name):
    """Finds an operator that a library has registered with torch, and nothing else."""
    operator, _ = torch._C._jit_get_operation(name)
    if operator is None:
        raise ImportError(f"{name} is not registered with torch: import its library before this stage")
    return operator


_operators = {
    name: _operator(name)
    for name in (
