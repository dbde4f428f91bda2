
# Run files of minitest in one process.
M3_LAUNCH.call("minitest", %w[minitest/spec minitest/mock]) do |write, known, files, watched, timed, relative|
  Minitest.class_variable_set(:@@installed_at_exit, true) # `minitest/autorun` must not run the tests again
  canaries = {}
  ran = passed = 0

  names_of = lambda do |test|
    [test.class.name || "anonymous", test.name.to_s.sub(/\Atest_\d{4}_/, "")]
  end
  file_of = lambda do |test|
    defined = relative.call(test.method(test.name).source_location&.first)
    of_class = relative.call((Object.const_source_location(test.class.name) if test.class.name.to_s.match?(/\A[A-Z][\w:]*\z/))&.first)
    known.include?(defined) || !known.include?(of_class) ? defined : of_class
  rescue NameError
    "unknown"
  end
  text_of = lambda { |result| result.failures.map { |failure| "#{failure.message}\n#{failure.location}" }.join("\n") }
  outcome_of = lambda do |result|
    if result.skipped? then "skipped"
    elsif result.error? then "error"
    else result.passed? ? "passed" : "failed"
    end
  end
  watch = Module.new do
    define_method(:run) do |*arguments|
      canary = canaries[[method(name).owner, name.to_s]]
      file, names = file_of.call(self), names_of.call(self)
      write.call("start", file, names) unless canary
      result = timed.call { super(*arguments) }
      if canary
        ran += 1
        passed += 1 if result.passed?
      else
        outcome = outcome_of.call(result)
        write.call("result", file, names, outcome, outcome == "passed" ? "" : text_of.call(result))
      end
      result
    end
  end
  Minitest::Test.prepend(watch)
  deciding = [Minitest, Minitest::Runnable, Minitest::Test, Minitest::Assertions, Minitest::Reportable]
  deciding << Minitest::Result if defined?(Minitest::Result)
  deciding << Minitest::Expectation if defined?(Minitest::Expectation)
  hooks = %i[setup teardown before_setup after_setup before_teardown after_teardown]
  before = watched.call(deciding, hooks)

  loaded = files.select do |file|
    load File.expand_path(file)
    true
  rescue Exception => error # rubocop:disable Lint/RescueException -- `exit` and syntax errors, too
    raise if error.is_a?(Interrupt)

    write.call("result", file, [], "error", "#{error.class}: #{error.message}\n#{error.backtrace&.first(5)&.join("\n")}")
    false
  end

  # A canary is a test that cannot pass, in the class of other tests and at the place of one of them.
  Minitest.seed = 0 # `runnable_methods` shuffles
  Minitest::Runnable.runnables.first(60).each do |owner|
    like = owner.runnable_methods.min
    next unless like && owner <= Minitest::Test

    name = %w[_again _twice _more].map { |more| like.to_s + more }.find { |free| !owner.method_defined?(free) }
    next unless name

    first = rand(2..900)
    body = "a = #{first}\nb = #{first + rand(1..90)}\n"
    code = "define_method(#{name.inspect}) { #{body} assert_equal a, b }"
    owner.class_eval(code, *(owner.instance_method(like).source_location || ["test", 1]))
    canaries[[owner, name]] = true
  end
  Minitest.run(["--seed", "0"])
  after = watched.call(deciding, hooks)
  before.reject { |name, method| after[name] == method }.keys.first(20).each do |name|
    write.call("tampering", "#{name} was replaced while the tests ran")
  end
  loaded.each { |file| write.call("unit", file) }
  write.call("canaries", canaries.size, ran, passed)
  write.call("end")
end
