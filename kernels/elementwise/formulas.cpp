// The elementwise operators. `name` is an operator with its arguments in order, and `name_x` the gradient of its argument x: there r
// is the operator's result, and g the gradient of r. A choice among an attribute's is a part of the name. `engine.py` reads this
// file, too: a formula stands in one line.
#include "formula.h"

// Parts of formulas.
static const T HALF = T(0.5);

// The gradient -g x / y^2. The square of y would overflow, and so would g / y or g (x / y) beside the other factor: a small x / y is the
// first factor, a large one the last.
static inline R slope_of_divisor(R ratio, R y, R g) {
    const R one = R{} + 1;
    return -(g * (absolute(ratio) < 1 ? ratio : one) / y * (absolute(ratio) < 1 ? one : ratio));
}
static inline R signed_by(R x, R g) { return x > 0 ? g : x < 0 ? -g : g * x; }
// (1 + tanh(u)) / 2 is the sigmoid of 2 u. Beyond 10^4 the product of an infinite x and 0 would be NaN.
static const T SCALE = T(1.59576912160573071176), CUBIC = T(0.044715);
static const R FAR = R{} + T(1e4);
static inline R cubic(R x) { return SCALE * (x + CUBIC * (x * x * x)); }
static inline R gelu_tanh_slope(R x) { return sigmoid(cubic(x)) + x * sigmoid_slope(cubic(x)) * (SCALE + 3 * SCALE * CUBIC * (x * x)); }
// |x| share + log(1 + e^-|x|): of an infinite logit that the target agrees with, 0 is left.
static inline R bce(R x, R share) {
    return (share == 0 ? R{} : absolute(x) * share) + logarithm_to_2(exponential(-absolute(x)));
}
static inline R huber_of(R size, R delta) {
    const R near = at_most(size, delta);
    return HALF * (near * near) + delta * (size - near);
}

// Arithmetic.
FORMULA1(copy, x, x)
FORMULA2(add, x, y, x + y)
FORMULA1(add_x, g, g)
FORMULA1(add_y, g, g)
FORMULA2(subtract, x, y, x - y)
FORMULA1(subtract_x, g, g)
FORMULA1(subtract_y, g, -g)
FORMULA2(multiply, x, y, x * y)
FORMULA2(multiply_x, y, g, g * y)
FORMULA2(multiply_y, x, g, g * x)
FORMULA2(divide, x, y, x / y)
FORMULA2(divide_x, y, g, g / y)
FORMULA3(divide_y, x, y, g, slope_of_divisor(x / y, y, g))
FORMULA1(negative, x, -x)
FORMULA1(negative_x, g, -g)
FORMULA1(square, x, x * x)
FORMULA2(square_x, x, g, (g + g) * x)
FORMULA1(sqrt, x, square_root(x))
FORMULA2(sqrt_x, r, g, g / (r + r))
FORMULA1(rsqrt, x, 1 / square_root(x))
FORMULA3(rsqrt_x, x, r, g, -HALF * g / x * r)

// Choices. NaN stays NaN.
FORMULA2(maximum, x, y, (x > y) | (x != x) ? x : y)
FORMULA3(maximum_x, x, y, g, y > x ? R{} : y == x ? g * HALF : g)
FORMULA3(maximum_y, x, y, g, x > y ? R{} : x == y ? g * HALF : g)
FORMULA2(minimum, x, y, (x < y) | (x != x) ? x : y)
FORMULA3(minimum_x, x, y, g, y < x ? R{} : y == x ? g * HALF : g)
FORMULA3(minimum_y, x, y, g, x < y ? R{} : x == y ? g * HALF : g)
FORMULA3(where, condition, x, y, condition != 0 ? x : y)
FORMULA2(where_x, condition, g, condition != 0 ? g : R{})
FORMULA2(where_y, condition, g, condition != 0 ? R{} : g)
FORMULA1(abs, x, absolute(x))
FORMULA2(abs_x, x, g, x > 0 ? g : x < 0 ? -g : g * x)
FORMULA1(relu, x, x <= 0 ? R{} : x)
FORMULA2(relu_x, r, g, r > 0 ? g : R{})
FORMULA2(leaky_relu, x, slope, x > 0 ? x : slope * x)
FORMULA3(leaky_relu_x, r, slope, g, r > 0 ? g : slope * g)
TEST2(equal, x, y, x == y)
TEST2(not_equal, x, y, x != y)
TEST2(less, x, y, x < y)
TEST2(less_equal, x, y, x <= y)
TEST2(greater, x, y, x > y)
TEST2(greater_equal, x, y, x >= y)
TEST1(isnan, x, x != x)
TEST1(isfinite, x, x - x == 0)
TEST1(isinf, x, (x == x) & (x - x != 0))

// Exponentials and logarithms.
FORMULA1(exp, x, exponential(x))
FORMULA2(exp_x, r, g, g * r)
FORMULA1(expm1, x, exponential_less_one(x))
FORMULA2(expm1_x, x, g, g * exponential(x))
FORMULA1(log, x, logarithm(x))
FORMULA2(log_x, x, g, g / x)
FORMULA1(log1p, x, logarithm_of_one_plus(x))
FORMULA2(log1p_x, x, g, g / (1 + x))
FORMULA1(softplus, x, softplus(x))
FORMULA2(softplus_x, x, g, g * sigmoid(x))
FORMULA1(sigmoid, x, sigmoid(x))
FORMULA2(sigmoid_x, x, g, g * sigmoid_slope(x))
FORMULA1(tanh, x, hyperbolic_tangent(x))
FORMULA2(tanh_x, x, g, g * hyperbolic_tangent_slope(x))

// Activations.
FORMULA1(erf, x, error_function(x))
FORMULA2(erf_x, x, g, g * error_function_slope(x))
FORMULA1(gelu, x, gelu(x))
FORMULA2(gelu_x, x, g, g * gelu_slope(x))
FORMULA1(gelu_tanh, x, at_least(x, -FAR) * sigmoid(cubic(x)))
FORMULA2(gelu_tanh_x, x, g, g * gelu_tanh_slope(at_most(at_least(x, -FAR), FAR)))
FORMULA1(silu, x, silu(x))
FORMULA2(silu_x, x, g, g * silu_slope(x))
FORMULA2(elu, x, alpha, x > 0 ? x : alpha * exponential_less_one(x))
FORMULA3(elu_x, x, alpha, g, x > 0 ? g : g * (alpha * exponential(x)))

// Losses.
FORMULA2(bce_with_logits, logits, targets, bce(logits, logits > 0 ? 1 - targets : targets))
FORMULA3(bce_with_logits_logits, logits, targets, g, g * (sigmoid(logits) - targets))
FORMULA2(bce_with_logits_targets, logits, g, -g * logits)
FORMULA2(squared_error, predictions, targets, (predictions - targets) * (predictions - targets))
FORMULA3(squared_error_predictions, predictions, targets, g, (g + g) * (predictions - targets))
FORMULA3(squared_error_targets, predictions, targets, g, (g + g) * (targets - predictions))
FORMULA2(absolute_error, predictions, targets, absolute(predictions - targets))
FORMULA3(absolute_error_predictions, predictions, targets, g, signed_by(predictions - targets, g))
FORMULA3(absolute_error_targets, predictions, targets, g, signed_by(targets - predictions, g))
FORMULA3(huber, predictions, targets, delta, huber_of(absolute(predictions - targets), delta))
FORMULA4(huber_predictions, predictions, targets, delta, g, g * at_most(at_least(predictions - targets, -delta), delta))
FORMULA4(huber_targets, predictions, targets, delta, g, g * at_most(at_least(targets - predictions, -delta), delta))

// Parts of the gradients of max and min: 1 where a value is the greatest or least one, and its share of a gradient there.
FORMULA2(is_extreme, x, extreme, (x < extreme) | (x > extreme) ? R{} : R{} + 1)
FORMULA3(share, x, extreme, g, (x < extreme) | (x > extreme) ? R{} : g)
