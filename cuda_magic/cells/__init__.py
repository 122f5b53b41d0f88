"""Running a cell as the plain cell would run, statement by statement. With magics/, the place that knows IPython.

`hooks` is there from loading on; what runs a cell (`run`) loads with the first cell below one of our magics.
"""
