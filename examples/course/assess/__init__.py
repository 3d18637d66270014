"""The checker of the assessment: python -m examples.course.assess my_script.py"""
