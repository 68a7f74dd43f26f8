"""Every public estimator passes the checks of scikit-learn."""

from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

from tests.test_common import instances_to_test


@parametrize_with_checks(instances_to_test())
def test_scikit_learn_check(estimator, check):
    is_partial = getattr(estimator, "_accepts_unlabelled", False)
    if is_partial and check.func is check_classifiers_classes:
        # It has -1 as a class, but for the semi-supervised classifiers of scikit-learn, by name.
        check_classifiers_classes("LabelSpreading", estimator)
    else:
        check(estimator)
