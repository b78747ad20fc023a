"""Plans that the active controller runs: stored in the metadata log, advanced step by step.

| module | subject |
|---|---|
| ``plans`` | the plans of an image |
| ``submission`` | requests that submit and cancel a plan |
| ``execution`` | the next step of a plan: what starts, what has ended |
| ``destinations`` | which brokers moves may copy to now |
| ``throttling`` | the throttle of a plan, set and removed with its moves |
| ``executor`` | advances all plans of the active controller |
| ``needs`` | when the controller plans by itself |
| ``futility`` | needs for which nothing can be moved |
| ``back_off`` | the pause after plans whose moves were rolled back |
| ``absences``, ``rollbacks`` | since when brokers are away, and why moves were rolled back |
| ``suggestion`` | a plan that would help, shown and not started |
| ``settings`` | limits of moves, triggers, ``balance.mode`` |
"""
