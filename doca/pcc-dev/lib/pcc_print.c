/*
 * Text of the library: a formatter without floating point, which uses the stack alone.
 */
#include "pcc_dev.h"

struct output {
	char *text;
	uint32_t size;
	uint32_t used;
};

/* A conversion: flags, width and precision. */
struct form {
	uint8_t is_left;
	uint8_t has_zeros;
	uint8_t has_prefix;
	uint8_t has_precision;
	char sign;
	uint32_t width;
	uint32_t precision;
};

static void put(struct output *output, char c)
{
	if (output->used + 1 < output->size)
		output->text[output->used++] = c;
}

static void fill(struct output *output, char c, uint32_t count)
{
	for (; count > 0 && output->used + 1 < output->size; count--)
		put(output, c);
}

/* Text with blanks before or behind it. */
static void text(struct output *output, const struct form *form, const char *from, uint32_t bytes)
{
	uint32_t blanks = form->width > bytes ? form->width - bytes : 0;

	if (!form->is_left)
		fill(output, ' ', blanks);
	for (uint32_t i = 0; i < bytes; i++)
		put(output, from[i]);
	if (form->is_left)
		fill(output, ' ', blanks);
}

static void number(struct output *output, const struct form *form, uint64_t value, uint32_t base, const char *digits,
		   const char *prefix)
{
	char reverse[24], whole[64];
	uint32_t count = 0, used = 0, zeros = 0, before = 0;

	for (uint64_t left = value; left > 0 || count == 0; left /= base)
		reverse[count++] = digits[left % base];
	if (form->has_precision && form->precision == 0 && value == 0)
		count = 0;
	before = (form->sign != 0) + (prefix[0] != 0) + (prefix[0] != 0 && prefix[1] != 0);
	if (form->has_precision)
		zeros = form->precision > count ? form->precision - count : 0;
	else if (form->has_zeros && !form->is_left && form->width > count + before)
		zeros = form->width - count - before;
	if (zeros > sizeof(whole) - sizeof(reverse) - 3)
		zeros = sizeof(whole) - sizeof(reverse) - 3;
	if (form->sign != 0)
		whole[used++] = form->sign;
	for (; *prefix != 0; prefix++)
		whole[used++] = *prefix;
	while (zeros-- > 0)
		whole[used++] = '0';
	while (count > 0)
		whole[used++] = reverse[--count];
	text(output, form, whole, used);
}

static const char *digits(const char *format, uint32_t *value)
{
	for (*value = 0; *format >= '0' && *format <= '9'; format++)
		*value = *value * 10 + (uint32_t)(*format - '0');
	return format;
}

/* Flags, width and precision. */
static const char *read_form(const char *format, struct form *form)
{
	for (;; format++) {
		if (*format == '-')
			form->is_left = 1;
		else if (*format == '0')
			form->has_zeros = 1;
		else if (*format == '#')
			form->has_prefix = 1;
		else if (*format == '+' || *format == ' ')
			form->sign = *format;
		else
			break;
	}
	format = digits(format, &form->width);
	if (*format == '.') {
		form->has_precision = 1;
		format = digits(format + 1, &form->precision);
	}
	return format;
}

static void string(struct output *output, const struct form *form, const char *from)
{
	uint32_t bytes = 0;

	if (from == NULL)
		from = "(null)";
	while (from[bytes] != 0 && (!form->has_precision || bytes < form->precision) && bytes < output->size)
		bytes++;
	text(output, form, from, bytes);
}

uint32_t pcc_format(char *into, uint32_t size, const char *format, va_list arguments)
{
	static const char low[] = "0123456789abcdef", high[] = "0123456789ABCDEF";
	struct output output = {into, size, 0};
	va_list list;

	va_copy(list, arguments);
	for (; *format != 0; format++) {
		struct form form = {0};
		uint32_t longs = 0;
		uint64_t value;
		char c;

		if (*format != '%') {
			put(&output, *format);
			continue;
		}
		format = read_form(format + 1, &form);
		for (; *format == 'l' || *format == 'z' || *format == 'j' || *format == 't' || *format == 'h'; format++)
			longs += *format != 'h';
		c = *format;
		if (c == 0)
			break;
		if (c == 's') {
			string(&output, &form, va_arg(list, const char *));
		} else if (c == 'c') {
			char one = (char)va_arg(list, int);

			text(&output, &form, &one, 1);
		} else if (c == 'd' || c == 'i') {
			int64_t whole = longs ? va_arg(list, int64_t) : va_arg(list, int);

			form.sign = whole < 0 ? '-' : form.sign;
			number(&output, &form, whole < 0 ? 0 - (uint64_t)whole : (uint64_t)whole, 10, low, "");
		} else if (c == 'u' || c == 'x' || c == 'X' || c == 'o') {
			value = longs ? va_arg(list, uint64_t) : va_arg(list, unsigned int);
			form.sign = 0;
			number(&output, &form, value, c == 'u' ? 10 : c == 'o' ? 8 : 16, c == 'X' ? high : low,
			       !form.has_prefix || value == 0 || c == 'u' ? "" : c == 'x' ? "0x" : c == 'X' ? "0X" : "0");
		} else if (c == 'p') {
			form.sign = 0;
			number(&output, &form, (uint64_t)(uintptr_t)va_arg(list, void *), 16, low, "0x");
		} else {
			put(&output, c);
		}
	}
	va_end(list);
	if (size > 0)
		into[output.used] = 0;
	return output.used;
}
