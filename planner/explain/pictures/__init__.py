"""Pictures of plans as SVG: placement by region, Gantt chart of a simulated run, quality against time, matrix of links.

Each picture is one self-contained document with a title and a description for screen readers. It follows the reader's
light or dark colour scheme. `drawing` has the shapes and colours that they share, and `periplus.view.svg` the markup.
Values go in and text comes out; nothing is written to a file here.
"""
