"""Commands that even out, empty and maintain nodes.

| module | subject |
|---|---|
| ``run_plan`` | shows a plan, submits it, shows its progress |
| ``command`` | ``riverrun cluster balance``, ``moves``, ``maintenance``, ``decommission`` |
| ``topic_command`` | ``riverrun topics move`` and ``rebalance`` |
"""
