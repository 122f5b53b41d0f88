"""Running a cell as the plain cell would run, statement by statement. With magics/, the place that knows IPython."""
